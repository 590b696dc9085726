"""The table of a run's attempts on its page."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from apps.console.selectors.chain import chain_page
from apps.runs.selectors import run_by_id
from apps.runs.services import attempt_end, run_put

pytestmark = pytest.mark.django_db


@pytest.fixture
def failed(run: Any, make_attempt: Callable[..., Any], now: datetime) -> None:
    """Two attempts of 12 s, 650 s apart, that crashed without a step; a third one is open."""
    for at, key in enumerate(["slurm:7.0.0", "slurm:7.1.0", "slurm:7.2.0"]):
        began = now + timedelta(seconds=650 * at)
        row = make_attempt(run, key=key, now=began)
        if at < 2:
            attempt_end(
                attempt_id=row.id, reason="CRASHED", authority="CLIENT", by="t", source="API",
                now=began + timedelta(seconds=12),
            )  # fmt: skip


class TestChainPage:
    def test_has_the_newest_attempt_first_and_says_who_began_it(self, run: Any, failed: None) -> None:
        chain = chain_page(run_by_id(run.id))

        assert [(line.number, line.outcome, line.token) for line in chain.lines] == [
            (3, "open", "ok"),
            (2, "crashed", "crit"),
            (1, "crashed", "crit"),
        ]
        assert [line.automatic for line in chain.lines] == [True, True, False]
        assert [line.interval_s for line in chain.lines] == [650, 650, None]

    def test_says_how_near_the_limit_is_and_where_it_is_set(self, run: Any, failed: None, now: datetime) -> None:
        before = chain_page(run_by_id(run.id))
        run_put(
            slug=run.slug, cluster_id=run.cluster_id, fields={"limits": {"restart_limit": 5}}, by="t", source="API", now=now
        )  # fmt: skip
        after = chain_page(run_by_id(run.id))

        assert (before.nowhere, before.limit, before.limit_by) == (2, 3, "default")
        assert (after.nowhere, after.limit, after.limit_by) == (2, 5, "run")
        assert before.common == ("trn001", "trn002")

    @pytest.mark.parametrize(
        ("reason", "outcome", "token"),
        [
            ("CRASHED", "crashed", "crit"),
            ("HUNG", "hung", "crit"),
            ("NODE_FAILURE", "node failure", "crit"),
            ("TIME_LIMIT", "time limit", "idle"),
            ("CANCELLED", "cancelled", "idle"),
            ("PREEMPTED", "preempted", "idle"),
            ("PLANNED", "planned stop", "idle"),
            ("FINISHED", "finished", "done"),
        ],
    )
    def test_an_end_that_is_no_failure_has_another_colour_and_gets_nobody_nearer_the_limit(
        self, run: Any, make_attempt: Callable[..., Any], now: datetime, reason: str, outcome: str, token: str
    ) -> None:
        row = make_attempt(run, now=now)
        attempt_end(
            attempt_id=row.id, reason=reason, authority="SCHEDULER", by="t", source="API",
            now=now + timedelta(seconds=12),
        )  # fmt: skip

        chain = chain_page(run_by_id(run.id))

        assert [(line.outcome, line.token) for line in chain.lines] == [(outcome, token)]
        assert chain.nowhere == (1 if token == "crit" else 0)

    def test_is_shown_as_a_part_of_the_page(self, run: Any, failed: None, client_as: Any, viewer: Any) -> None:
        text = client_as(viewer).get(f"/runs/{run.slug}/parts/chain", headers={"HX-Request": "true"}).text

        assert "3 attempts in this chain, one every 10\xa0min (median)" in text
        assert "2 attempts in a row got nowhere; 3 are the limit, Paceline's default" in text
        assert "In all of them: trn001, trn002." in text
        assert text.count("the scheduler by itself") == 2

    def test_of_a_run_that_never_began_says_what_to_do(self, run: Any, client_as: Any, viewer: Any) -> None:
        text = client_as(viewer).get(f"/runs/{run.slug}/parts/chain", headers={"HX-Request": "true"}).text

        assert "No attempt has begun yet. The first report opens one." in text
