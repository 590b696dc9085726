"""Which nodes could take a lost one's place."""

import pytest

from apps.remediation.selectors.pool import PoolNode, spare_names
from apps.runs.launcher import LauncherSetting


def node(number: int, *, said: str = "", out: bool = False, runs: tuple[int, ...] = ()) -> PoolNode:
    name = f"trn{number:03}"
    return PoolNode(
        id=number, names=frozenset({name, f"{name}.site"}), name=name, is_out=out, open_runs=runs, scheduler_state=said
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
