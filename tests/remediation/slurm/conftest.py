"""What tests of the Slurm launcher start from: a real Slurm, a cluster that is set to it, runs that it starts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.slurm import Slurm, slurm, slurm_own, slurm_session, wait_for  # noqa: F401 - fixtures

FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.1; done"


@pytest.fixture
def settle_slurm(cluster: int, boss: Any) -> Callable[..., None]:
    """Set the cluster `north` to a Slurm: `settle_slurm(slurm, drains=False)`."""
    from apps.remediation.services import SchedulerFields, scheduler_set

    def settle(which: Slurm, **fields: Any) -> None:
        scheduler_set(
            principal=boss,
            cluster_id=cluster,
            fields=SchedulerFields(conf=str(which.conf), **fields),
            source="API",
            now=datetime.now(UTC),
        )

    return settle


@pytest.fixture
def set_slurm(slurm: Slurm, settle_slurm: Callable[..., None]) -> Slurm:  # noqa: F811
    """The session's Slurm, as the cluster's scheduler."""
    settle_slurm(slurm)
    return slurm


@pytest.fixture
def submitted_run(make_run: Callable[..., Any], set_slurm: Slurm) -> Any:
    """A run whose launcher submits three nodes of the four at each start."""
    command = ["--nodes=3", "--exclusive", "/bin/sh", "-c", FOREVER]
    launcher = {"kind": "SLURM", "command": command, "directory": str(set_slurm.folder), "stop_grace_s": 5}
    return make_run("dense-7b", launcher=launcher)


@pytest.fixture
def nodes(cluster: int, now: Any) -> Callable[..., list[int]]:
    """Nodes of the cluster by name, known to Paceline."""
    from apps.fleet.services import nodes_ensure

    def ensure(*names: str) -> list[int]:
        found = nodes_ensure(cluster_id=cluster, names=names, now=now)
        return [found[name] for name in names]

    return ensure


@pytest.fixture
def read(cluster: int) -> Callable[..., Any]:
    """Read the cluster's scheduler now, as the clockwork would; gives its row."""
    from apps.remediation.models import SchedulerSetting
    from apps.remediation.selectors import scheduler_of
    from apps.remediation.tasks import scheduler_read

    def now_read() -> Any:
        SchedulerSetting.objects.filter(pk=cluster).update(next_read_at=datetime.now(UTC))
        scheduler_read(cluster_id=cluster)
        return scheduler_of(cluster)

    return now_read
