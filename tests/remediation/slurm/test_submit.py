"""A run that Paceline submits: started once, stopped, found again, without the nodes that are out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from apps.runs.selectors import attempt_by_id
from tests.remediation.conftest import is_watched
from tests.slurm import Slurm, wait_for

pytestmark = pytest.mark.django_db


def job_of(row: Any) -> int:
    """The number of the job that an action's last order started."""
    return int(row.orders[-1].receipt["receipt"])


class TestSubmit:
    def test_runs_on_the_nodes_that_remain(
        self,
        submitted_run: Any,
        set_slurm: Slurm,
        nodes: Callable[..., list[int]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
    ) -> None:
        nodes(*set_slurm.names)

        row = work(ask("RESTART_RUN", submitted_run, options={"exclude_nodes": ["node2"]}).id, until=is_watched)

        job = wait_for(lambda: (job := set_slurm.job(job_of(row))).runs and job, "the job to run")
        assert job.nodes == "node[1,3-4]"
        assert job.exc_nodes == "node2"
        attempt = attempt_by_id(row.attempt_id)
        assert (attempt.key, attempt.external_id) == (f"slurm:{job.id}.0", f"slurm:{job.id}")
