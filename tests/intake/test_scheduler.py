"""`POST ingest/scheduler`: a site pushes what its scheduler lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from apps.common.access import SYSTEM
from apps.fleet.selectors import node_by_code
from apps.remediation.services import SchedulerFields, scheduler_set
from apps.runs.selectors import attempt_by_id, run_by_id
from apps.runs.services import attempt_open

pytestmark = pytest.mark.django_db

SAMPLES = Path(__file__).parents[3] / "shared" / "samples" / "slurm"

NODES = [
    {"name": "trn001", "state": "idle", "state_flags": [], "reason": ""},
    {"name": "trn002", "state": ["IDLE", "DRAIN"], "reason": "DIMM", "reason_set_by_user": "root"},
    {"name": "trn003", "state": ["DOWN", "NOT_RESPONDING"], "reason": "Not responding"},
]


def listing(at: datetime, **more: Any) -> dict[str, Any]:
    return {"source": "slurm", "cluster": "north", "at": at.isoformat(), **more}


@pytest.fixture
def post(api: Callable[..., Client], cluster: int) -> Callable[..., Any]:
    """Push a listing as a sender of the cluster."""
    sender = api("report", cluster_id=cluster)
    return lambda body: sender.post("/api/v1/ingest/scheduler", body)


class TestIngestScheduler:
    def test_takes_in_nodes_of_old_and_new_versions(self, post: Callable[..., Any]) -> None:
        answer = post(listing(datetime.now(UTC), nodes=NODES))

        assert answer.status_code == 202
        taken = {"nodes": 3, "jobs": 0, "not_understood": 0, "samples": [], "ignored": []}
        assert answer.json() == {**taken, "zone": "UTC"}
        states = {name: node_by_code(name).state for name in ("trn001", "trn002", "trn003")}
        assert states == {"trn001": "IN_SERVICE", "trn002": "EXCLUDED", "trn003": "DOWN"}

    def test_an_older_listing_changes_nothing(self, post: Callable[..., Any]) -> None:
        moment = datetime.now(UTC)
        post(listing(moment, nodes=NODES))

        answer = post(listing(moment - timedelta(seconds=1), nodes=[{"name": "trn001", "state": "down"}]))

        assert answer.json()["nodes"] == 0
        assert node_by_code("trn001").state == "IN_SERVICE"

    def test_ends_the_attempt_of_a_job_that_reached_its_limit(self, post: Callable[..., Any], run: Any) -> None:
        moment = datetime.now(UTC)
        attempt_open(run_id=run.id, key="slurm:7.0.batch", world_size=8, by="test", source="API", now=moment)

        answer = post(
            listing(moment, jobs=[{"job_id": 7, "job_state": ["TIMEOUT"], "restart_cnt": 0, "nodes": "trn001"}])
        )

        assert answer.json()["jobs"] == 1
        assert run_by_id(run.id).attempt_ended_reason == "TIME_LIMIT"

    def test_counts_what_it_does_not_understand_and_takes_the_rest(self, post: Callable[..., Any]) -> None:
        nodes = [*NODES, 7, None, {"name": "a b", "state": "idle"}, {"name": "x"}, {"state": "idle"}]

        answer = post(
            listing(datetime.now(UTC), nodes=nodes, jobs=["x", {"job_id": -1, "job_state": "RUNNING"}])
        ).json()

        assert (answer["nodes"], answer["not_understood"]) == (3, 7)
        assert len(answer["samples"]) == 5

    def test_a_listing_from_ahead_is_refused(self, post: Callable[..., Any]) -> None:
        assert post(listing(datetime.now(UTC) + timedelta(hours=1), nodes=NODES)).status_code == 400

    def test_a_sender_of_another_cluster_is_refused(self, api: Callable[..., Client], cluster: int) -> None:
        from apps.fleet.services import cluster_ensure

        other = cluster_ensure(name="south", now=datetime.now(UTC))

        answer = api("report", cluster_id=other).post("/api/v1/ingest/scheduler", listing(datetime.now(UTC)))

        assert answer.status_code == 403

    @pytest.mark.parametrize(
        ("set_to", "said", "zone", "ended_at"),
        [
            (None, {}, "UTC", datetime(2026, 7, 1, 12, 0, tzinfo=UTC)),
            ("Europe/Paris", {}, "Europe/Paris", datetime(2026, 7, 1, 10, 0, tzinfo=UTC)),
            ("Europe/Paris", {"zone": "Asia/Tokyo"}, "Asia/Tokyo", datetime(2026, 7, 1, 3, 0, tzinfo=UTC)),
        ],
    )
    def test_a_time_without_an_offset_is_read_in_the_clusters_zone(
        self,
        post: Callable[..., Any],
        run: Any,
        cluster: int,
        set_to: str | None,
        said: dict[str, str],
        zone: str,
        ended_at: datetime,
    ) -> None:
        fields = SchedulerFields(zone=set_to) if set_to is not None else None
        began_at = datetime(2026, 7, 1, 1, 0, tzinfo=UTC)
        scheduler_set(principal=SYSTEM, cluster_id=cluster, fields=fields, source="API", now=began_at)
        attempt, _ = attempt_open(
            run_id=run.id, key="slurm:7.0.batch", world_size=8, by="test", source="API", now=began_at
        )
        job = {"job_id": 7, "job_state": "FAILED", "restart_cnt": 0, "end_time": "2026-07-01T12:00:00"}

        answer = post(listing(datetime.now(UTC), jobs=[job], **said)).json()

        assert (answer["jobs"], answer["zone"]) == (1, zone)
        assert attempt_by_id(attempt.id).ended_at == ended_at

    def test_a_zone_that_does_not_exist_is_refused(self, post: Callable[..., Any]) -> None:
        answer = post(listing(datetime.now(UTC), nodes=NODES, zone="Mars/Base"))

        assert answer.status_code == 400
        assert "Mars/Base" in answer.json()["error"]["message"]

    @pytest.mark.parametrize("name", ["real2205_sinfo.json", "slurmrestd_24.05_nodes_first50.json"])
    def test_takes_in_what_a_real_scheduler_listed(self, post: Callable[..., Any], name: str) -> None:
        if not SAMPLES.exists():
            pytest.skip("the folder of samples is not beside this checkout")
        nodes = json.loads((SAMPLES / name).read_text())["nodes"]

        answer = post(listing(datetime.now(UTC), nodes=nodes)).json()

        assert (answer["nodes"], answer["not_understood"]) == (len(nodes), 0)
