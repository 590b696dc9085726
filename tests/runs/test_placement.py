"""Who sits where: what each sender tells is put together, and nothing that was told is lost."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from apps.fleet.services import nodes_ensure
from apps.runs.selectors import placement_of
from apps.runs.services import RankPlace, attempt_open, placement_merge


@pytest.fixture
def unsized(run: Any, now: datetime) -> Any:
    """An attempt of which nobody has said yet how many ranks it has."""
    return attempt_open(run_id=run.id, key="order:1", world_size=None, by="t", source="API", now=now, order_id=1)[0]


@pytest.fixture
def nodes(cluster: int, now: datetime) -> list[int]:
    found = nodes_ensure(cluster_id=cluster, names=["a", "b"], now=now)
    return [found["a"], found["b"]]


class TestPlacementMerge:
    def test_of_an_attempt_without_a_size_keeps_the_higher_ranks_when_lower_ones_follow(
        self, unsized: Any, nodes: list[int]
    ) -> None:
        placement_merge(attempt_id=unsized.id, places=[RankPlace(rank=5, node_id=nodes[1], local_rank=1)])
        placement_merge(attempt_id=unsized.id, places=[RankPlace(rank=0, node_id=nodes[0], local_rank=0)])

        found = placement_of(unsized.id)

        assert found is not None
        assert found.nodes.tolist() == [nodes[0], 0, 0, 0, 0, nodes[1]]
        assert found.node_ids == sorted(nodes)

    def test_keeps_what_a_later_sender_does_not_tell(
        self, run: Any, make_attempt: Callable[..., Any], nodes: list[int]
    ) -> None:
        attempt = make_attempt(run, world_size=2)
        whole = RankPlace(rank=1, node_id=nodes[0], local_rank=1, gpu="GPU-a", coords={"pp": 3, "dp": 0})
        placement_merge(attempt_id=attempt.id, places=[whole])

        placement_merge(attempt_id=attempt.id, places=[RankPlace(rank=1, node_id=nodes[0])])

        found = placement_of(attempt.id)
        assert found is not None
        assert (found.local_ranks[1], found.stages[1], found.gpus["1"]) == (1, 3, "GPU-a")

    def test_takes_over_coordinates_of_which_only_the_last_is_new(
        self, run: Any, make_attempt: Callable[..., Any], nodes: list[int]
    ) -> None:
        attempt = make_attempt(run, world_size=1)
        place = {"rank": 0, "node_id": nodes[0], "local_rank": 0}
        placement_merge(attempt_id=attempt.id, places=[RankPlace(**place, coords={"pp": 0})])

        changed = placement_merge(attempt_id=attempt.id, places=[RankPlace(**place, coords={"pp": 0, "dp": 4})])

        found = placement_of(attempt.id)
        assert found is not None
        assert (changed, found.coords["0"]) == (True, {"pp": 0, "dp": 4})

    def test_leaves_out_a_rank_beyond_the_size(
        self, run: Any, make_attempt: Callable[..., Any], nodes: list[int]
    ) -> None:
        attempt = make_attempt(run, world_size=2)

        placement_merge(attempt_id=attempt.id, places=[RankPlace(rank=2, node_id=nodes[0])])

        found = placement_of(attempt.id)
        assert found is not None
        assert len(found.nodes) == 2
