"""Which nodes could take a lost one's place."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from apps.remediation.selectors import pool as selectors
from apps.remediation.selectors.pool import PoolNode
from apps.runs.launcher import LauncherSetting

NOW = datetime(2026, 12, 1, 2, 10, tzinfo=UTC)
spare_names = partial(selectors.spare_names, now=NOW)


def node(
    number: int,
    *,
    said: str = "",
    out: bool = False,
    runs: tuple[int, ...] = (),
    age_s: float = 5.0,
    partitions: tuple[str, ...] = (),
) -> PoolNode:
    name = f"trn{number:03}"
    return PoolNode(
        id=number,
        names=frozenset({name, f"{name}.site"}),
        name=name,
        is_out=out,
        open_runs=runs,
        scheduler_state=said,
        read_at=NOW - timedelta(seconds=age_s) if said else None,
        partitions=partitions,
    )


OWN = LauncherSetting("LOCAL", nodes=("trn003.site", "trn001", "trn002"))
SLURM = LauncherSetting("SLURM")


class TestSpares:
    def test_are_a_launcher_s_free_nodes_in_its_order_and_by_its_names(self) -> None:
        assert spare_names([node(1), node(2, runs=(7,)), node(3), node(4)], OWN) == ("trn003.site", "trn001")

    def test_are_not_those_that_the_action_puts_out(self) -> None:
        assert spare_names([node(1), node(2), node(3)], OWN, adding=[1]) == ("trn003.site", "trn002")

    @pytest.mark.parametrize("said", ["ALLOCATED", "MIXED", "IDLE+DRAIN", "IDLE*", "IDLE~", "DOWN", "UNKNOWN"])
    def test_are_not_those_that_the_scheduler_would_not_give(self, said: str) -> None:
        pool = [node(1, said=said), node(2, said="IDLE")]

        assert (spare_names(pool, OWN), spare_names(pool, SLURM)) == (("trn002",), ("trn002",))

    def test_of_a_scheduler_are_only_those_that_it_tells_of(self) -> None:
        assert spare_names([node(1), node(2, said="idle"), node(3, said="IDLE", out=True)], SLURM) == ("trn002",)

    def test_are_none_where_nobody_can_launch(self) -> None:
        assert spare_names([node(1, said="IDLE")], None) == ()

    def test_are_not_those_of_partitions_in_which_the_job_does_not_run(self) -> None:
        pool = [
            node(1, said="IDLE", partitions=("cpu",)),
            node(2, said="IDLE", partitions=("cpu", "train")),
            node(3, said="IDLE"),
        ]

        assert spare_names(pool, SLURM, partitions=("train", "spare")) == ("trn002",)

    def test_may_be_of_any_partition_where_the_job_s_or_the_nodes_are_not_known(self) -> None:
        told, untold = [node(1, said="IDLE", partitions=("cpu",))], [node(1, said="IDLE")]

        assert spare_names(told, SLURM) == spare_names(untold, SLURM, partitions=("train",)) == ("trn001",)

    def test_are_not_those_of_which_the_scheduler_told_too_long_ago(self) -> None:
        pool = [node(1, said="IDLE", age_s=901), node(2, said="IDLE", age_s=899)]

        assert (spare_names(pool, OWN), spare_names(pool, SLURM)) == (("trn002",), ("trn002",))
