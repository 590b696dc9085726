"""A cluster's scheduler is set by admins, and what Paceline could do there is said before it is done. No Slurm needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from apps.engine.readers.slurm import SlurmJob, SlurmNode, SlurmTime
from apps.fleet.models import Exclusion
from apps.fleet.services import exclusion_end, exclusion_open, nodes_ensure
from apps.journal.models import Event
from apps.remediation.launchers.slurm_jobs import found_again
from apps.remediation.selectors import restart_preview, scheduler_of
from apps.remediation.services import action_request, jobs_seen, nodes_seen
from apps.remediation.services.node_orders import drain_reason
from apps.runs.services import attempt_open

pytestmark = pytest.mark.django_db

PATH = "/api/v1/clusters/north/scheduler"


class TestSetting:
    def test_is_set_read_and_taken_away_by_an_admin(self, api: Callable[..., Client], cluster: int) -> None:
        admin = api("admin", "read")

        put = admin.put(PATH, {"conf": "/etc/slurm/slurm.conf", "zone": "Europe/Paris", "drains": False, "more": 1})
        got = admin.get(PATH).json()
        gone = admin.delete(PATH).status_code

        assert put.status_code == 200
        assert put.json()["ignored"] == ["more"]
        assert (got["conf"], got["zone"], got["drains"], got["failures"]) == (
            "/etc/slurm/slurm.conf",
            "Europe/Paris",
            False,
            0,
        )
        assert gone == 204
        assert admin.get(PATH).status_code == 404
        assert Event.objects.filter(kind="scheduler.set").count() == 2

    def test_an_operator_may_not(self, api: Callable[..., Client], cluster: int) -> None:
        answer = api("operate", "read").put(PATH, {"programs": "/tmp/mine"})

        assert answer.status_code == 403
        assert scheduler_of(cluster) is None

    @pytest.mark.parametrize(
        "given", [{"conf": "slurm.conf"}, {"programs": "bin"}, {"zone": "Mars/Base"}, {"poll_s": 0}, {"kind": "PBS"}]
    )
    def test_what_makes_no_sense_is_refused(
        self, api: Callable[..., Client], cluster: int, given: dict[str, Any]
    ) -> None:
        answer = api("admin").put(PATH, given)

        assert answer.status_code == 400
        assert scheduler_of(cluster) is None

    def test_the_command_sets_the_same(self, cluster: int) -> None:
        call_command("scheduler_set", "north", "--conf", "/etc/slurm.conf", "--no-drains")

        row = scheduler_of(cluster)
        assert row is not None
        assert (row.conf, row.drains) == ("/etc/slurm.conf", False)
        with pytest.raises(CommandError):
            call_command("scheduler_set", "south")


class TestPreview:
    @pytest.fixture
    def requeued(self, make_run: Callable[..., Any], cluster: int) -> Any:
        """A run whose job Slurm put back by itself a moment ago."""
        call_command("scheduler_set", "north")
        run = make_run("dense-7b", launcher={"kind": "SLURM"})
        moment = datetime.now(UTC)
        attempt_open(
            run_id=run.id, key="slurm:7.0.batch", external_id="slurm:7", world_size=8, by="t", source="API", now=moment
        )
        eligible = SlurmTime(moment + timedelta(minutes=2))
        job = SlurmJob(7, "PENDING", reason="BeginTime", restarts=1, eligible_at=eligible)
        jobs_seen(cluster_id=cluster, jobs=[job], at=moment, now=moment)
        return run

    def test_a_restart_says_that_slurm_has_put_the_job_back_already(self, requeued: Any) -> None:
        preview = restart_preview(requeued.id, now=datetime.now(UTC))

        assert preview.can
        assert "requeued job 7 by itself already (restart 1)" in preview.happens[0].text
        assert "a second one is never started" in preview.happens[0].small
        assert preview.orders == ("release job 7, to begin in 2 s",)

    def test_without_a_scheduler_it_is_said_what_is_missing(
        self, make_run: Callable[..., Any], cluster: int, who: Any
    ) -> None:
        run = make_run("dense-7b", launcher={"kind": "SLURM", "command": ["/bin/true"]})

        row = action_request(
            principal=who,
            kind="RESTART_RUN",
            run_id=run.id,
            reason="it stands since this morning",
            source="API",
            now=datetime.now(UTC),
        )

        assert row.state == "REFUSED"
        assert "no Slurm set" in row.outcome

    def test_without_a_command_and_a_job_there_is_nothing_to_start(
        self, make_run: Callable[..., Any], cluster: int
    ) -> None:
        call_command("scheduler_set", "north")
        run = make_run("dense-7b", launcher={"kind": "SLURM"})

        preview = restart_preview(run.id, now=datetime.now(UTC))

        assert not preview.can
        assert "no command to submit" in preview.why_not


class TestDrift:
    def test_what_is_still_drained_with_our_mark_is_listed(self, api: Callable[..., Client], cluster: int) -> None:
        call_command("scheduler_set", "north")
        moment = datetime.now(UTC)
        node_id = nodes_ensure(cluster_id=cluster, names=["trn001"], now=moment)["trn001"]
        line = exclusion_open(
            node_id=node_id, reason="ECC", by_name="mia", origin="OURS", source="WEB", now=moment - timedelta(hours=1)
        )
        exclusion_end(node_id=node_id, reason="repaired", by_name="mia", source="WEB", now=moment)
        reason = drain_reason(Exclusion.objects.get(pk=line))
        node = SlurmNode("trn001", "IDLE", frozenset({"DRAIN"}), reason, "root")

        nodes_seen(cluster_id=cluster, nodes=[node], at=moment, now=moment)

        (row,) = api("read").get("/api/v1/clusters/north/drift").json()["results"]
        assert (row["node"], row["kind"], row["by"]) == ("trn001", "LEFT", "root")


class TestReceipts:
    def test_one_that_was_lost_claims_of_a_jobs_list_what_its_order_wanted_alone(self) -> None:
        job = SlurmJob(7, "RUNNING", exc_nodes="node[1-3]")

        receipt = found_again(job, "it runs", (frozenset({"node2", "node2.site"}), frozenset({"login"})))

        assert receipt.facts["excluded"] == ["node2"]
