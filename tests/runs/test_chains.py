"""Retry chains: counted by what began and ended, with who began each attempt and which nodes they share."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.runs.selectors import chain_newest, chains_listed
from apps.runs.services import attempt_end, attempt_open, status_update

pytestmark = pytest.mark.django_db


@pytest.fixture
def tried(run: Any, make_attempt: Callable[..., Any], now: datetime) -> Callable[..., Any]:
    """Make an attempt that began and ended so many seconds after `now`."""

    def make(key: str, *, at: float, lasted: float | None = 12.0, reason: str = "CRASHED", **more: Any) -> Any:
        row = make_attempt(run, key=key, now=now + timedelta(seconds=at), **more)
        if lasted is not None:
            attempt_end(
                attempt_id=row.id, reason=reason, authority="CLIENT", by="t", source="API",
                now=now + timedelta(seconds=at + lasted),
            )  # fmt: skip
        return row

    return make


class TestChain:
    def test_tells_who_began_each_attempt(self, run: Any, tried: Callable[..., Any]) -> None:
        tried("slurm:7.0.0", at=0)
        tried("slurm:7.1.0", at=650)
        tried("torchrun:x/a", at=1300)
        tried("torchrun:x/b", at=1950)
        tried("ours:1", at=2600, order_id=5)

        begun = [(row.by, row.by_name) for row in chain_newest(run.id)]

        assert begun == [
            ("SUBMITTED", "Slurm job 7"),
            ("SCHEDULER", "Slurm job 7"),
            ("SUBMITTED", "torchrun"),
            ("LAUNCHER", "torchrun"),
            ("PERSON", "test"),
        ]

    def test_counts_attempts_and_never_a_rank_s_own_counter(self, run: Any, now: datetime) -> None:
        # Three nodes call themselves restarts 1, 0 and 2; four starts were seen.
        for n, told in enumerate([1, 0, 2, 0]):
            row, _ = attempt_open(
                run_id=run.id, key=f"torchrun:x/{n}", world_size=8, by="t", source="API",
                now=now + timedelta(seconds=60 * n), config={"restart_count": told},
            )  # fmt: skip
            attempt_end(attempt_id=row.id, reason="CRASHED", authority="CLIENT", by="t", source="API", now=now)

        assert [row.attempt.number for row in chain_newest(run.id)] == [1, 2, 3, 4]

    def test_is_empty_of_a_run_that_never_began(self, run: Any) -> None:
        assert chain_newest(run.id) == []
        assert chains_listed(run.id) == []


class TestChainsByRest:
    def test_are_newest_first_with_interval_nodes_and_success(
        self, run: Any, tried: Callable[..., Any], api: Callable[..., Any]
    ) -> None:
        tried("a", at=0)
        tried("b", at=650, reason="FINISHED")
        tried("c", at=9000, world_size=4)
        tried("d", at=9660, lasted=None)

        said = api("read").get(f"/api/v1/runs/{run.slug}/chains").json()

        newest, oldest = said["items"]
        assert (newest["length"], newest["outcome"], oldest["outcome"]) == (2, None, "FINISHED")
        assert newest["interval_s"] == 660
        assert newest["limit"] == {"value": 3, "set_by": "default"}
        assert newest["got_nowhere"] == 1
        assert newest["attempts"][0]["nodes"] == ["trn001"]
        assert newest["attempts"][0]["lasted_s"] == 12
        assert newest["attempts"][1]["interval_s"] == 660
        assert (said["success"]["count"], said["success"]["of"]) == (1, 1)
        assert said["success"]["low"] == pytest.approx(0.025)

    def test_one_that_goes_on_between_two_attempts_is_no_failure_yet(
        self, run: Any, tried: Callable[..., Any], api: Callable[..., Any]
    ) -> None:
        tried("a", at=0)
        tried("b", at=650)
        address = f"/api/v1/runs/{run.slug}/chains"

        between = api("read").get(address).json()["success"]
        status_update(run_id=run.id, gave_up=True)
        given_up = api("read").get(address).json()["success"]

        assert (between["count"], between["of"]) == (0, 0)
        assert (given_up["count"], given_up["of"]) == (0, 1)

    def test_of_a_run_that_never_began_are_none(self, run: Any, api: Callable[..., Any]) -> None:
        said = api("read").get(f"/api/v1/runs/{run.slug}/chains").json()

        assert said["items"] == []
        assert said["success"]["share"] is None
