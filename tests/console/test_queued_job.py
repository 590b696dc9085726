"""A job that Slurm put back by itself: the run's page offers to release it or to submit anew, and says what each does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from apps.engine.readers.slurm import SlurmJob, SlurmTime
from apps.remediation.models import Action
from apps.remediation.services.jobs import jobs_seen
from apps.runs.services import attempt_open
from tests.console.browser import chromium
from tests.console.test_confirm_pages import hidden
from tests.console.test_people_in_browser import come

pytestmark = pytest.mark.django_db
COMMAND = ["--nodes=2", "srun", "python", "train.py"]


@pytest.fixture
def put_back(make_run: Callable[..., Any], cluster: int) -> Callable[..., Any]:
    """Make a run whose job Slurm put back a moment ago: `put_back({"kind": "SLURM"})`."""

    def make(launcher: dict[str, Any], **more: Any) -> Any:
        call_command("scheduler_set", "north")
        run, moment = make_run("dense-7b", launcher=launcher), datetime.now(UTC)
        attempt_open(
            run_id=run.id, key="slurm:7.0", external_id="slurm:7", world_size=8, by="t", source="API", now=moment
        )
        eligible = SlurmTime(moment + timedelta(minutes=2))
        given = {"reason": "BeginTime", "restarts": 1, "eligible_at": eligible} | more
        jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, "PENDING", **given)], at=moment, now=moment)
        return run

    return make


class TestTheRunsPage:
    def test_offers_both_and_to_cancel_it(self, put_back: Any, client_as: Any, operator: Any) -> None:
        put_back({"kind": "SLURM", "command": COMMAND})

        page = client_as(operator).get("/runs/dense-7b").text

        for words in ("Release job 7 now…", "Cancel and submit anew…", "Cancel job 7…", "Slurm put it back by itself"):
            assert words in page
        assert "Start again…" not in page

    def test_offers_no_submission_of_a_job_that_is_somebody_else_s(
        self, put_back: Any, client_as: Any, operator: Any
    ) -> None:
        put_back({"kind": "SLURM"})

        page = client_as(operator).get("/runs/dense-7b").text

        assert "Release job 7 now…" in page
        assert "Cancel and submit anew…" not in page

    def test_a_held_job_is_said_to_be_held(self, put_back: Any, client_as: Any, operator: Any) -> None:
        put_back({"kind": "SLURM"}, reason="JobHeldUser", eligible_at=SlurmTime(None))

        assert "it is held until somebody releases it" in client_as(operator).get("/runs/dense-7b").text


class TestConfirming:
    ADDRESS = "/runs/dense-7b/actions/new?kind=RESTART_RUN"

    def test_says_when_it_starts_and_what_each_choice_does(self, put_back: Any, client_as: Any, operator: Any) -> None:
        put_back({"kind": "SLURM", "command": COMMAND})

        page = client_as(operator).get(self.ADDRESS).text

        assert "Slurm put job 7 back into its queue by itself (restart 1); it may start at" in page
        assert 'value="RESUBMIT" checked' in page
        assert "scancel job 7" in page
        assert "sbatch" in page

    def test_a_job_that_is_released_takes_no_checkpoint(self, put_back: Any, client_as: Any, operator: Any) -> None:
        put_back({"kind": "SLURM", "command": COMMAND})

        page = client_as(operator).get(f"{self.ADDRESS}&requeued=RELEASE").text

        assert 'value="RELEASE" checked' in page
        assert "release job 7, to begin in 2 s" in page
        assert "a job that goes on cannot be told one" in page
        assert 'id="from-step"' not in page
        assert "Release job 7</button>" in page

    def test_what_was_chosen_is_asked_for(self, put_back: Any, client_as: Any, operator: Any) -> None:
        put_back({"kind": "SLURM", "command": COMMAND})
        client = client_as(operator)
        page = client.get(f"{self.ADDRESS}&requeued=RELEASE").text
        names = ("kind", "key", "expected_attempt", "expected_state")
        form = {name: hidden(page, name) for name in names}

        client.post(self.ADDRESS, form | {"when": "NOW", "requeued": "RELEASE", "reason": "its nodes are free again"})

        assert Action.objects.get().options["requeued"] == "RELEASE"

    def test_a_choice_that_came_too_late_is_told(
        self, put_back: Any, client_as: Any, operator: Any, cluster: int
    ) -> None:
        put_back({"kind": "SLURM", "command": COMMAND})
        client = client_as(operator)
        page = client.get(f"{self.ADDRESS}&requeued=RELEASE").text
        form = {name: hidden(page, name) for name in ("kind", "key", "expected_attempt", "expected_state")}
        later = datetime.now(UTC)
        jobs_seen(cluster_id=cluster, jobs=[SlurmJob(7, "RUNNING", nodes="n1", restarts=1)], at=later, now=later)

        answer = client.post(
            self.ADDRESS, form | {"when": "NOW", "requeued": "RELEASE", "reason": "its nodes are free"}
        )

        assert answer.status_code == 409
        assert "The run moved on" in answer.text
        assert not Action.objects.exists()


@pytest.mark.browser
def test_what_is_chosen_changes_the_page_and_nothing_that_was_written(
    live_site: Any, put_back: Any, make_user: Any
) -> None:
    make_user("OPERATOR", "operator")
    put_back({"kind": "SLURM", "command": COMMAND})
    with chromium() as browser:
        reader = come(browser, live_site, "operator", TestConfirming.ADDRESS)
        page = reader.page
        page.fill("#reason", "its nodes are free again")

        page.check("input[value=RELEASE]")
        page.wait_for_function("() => document.querySelector('#go').innerText === 'Release job 7'")
        released = page.inner_text("#radius")
        page.check("input[value=RESUBMIT]")
        page.wait_for_function("() => document.querySelector('#go').innerText === 'Cancel and submit anew'")

        assert "release job 7, to begin in 2 s" in released
        assert "scancel job 7" in page.inner_text("#radius")
        assert page.input_value("#reason") == "its nodes are free again"
        assert page.is_enabled("#go")
        assert reader.errors == []
