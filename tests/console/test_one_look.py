"""One look says one thing: the parts of a confirm form, whose steps a lane shows, what an action is called and what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from django.test import Client

from apps.console.selectors import ranks
from apps.console.selectors.actions import action_label, action_word
from apps.console.selectors.lanes import lanes_of
from apps.console.selectors.suspects import SLOW_CAUSES, suspect_nodes
from apps.engine.detection import Level, Proposal, ProposalKind, Subject, SubjectKind
from apps.runs.selectors import run_by_id

from .test_choices import hooked as hooked
from .test_choices import text_of

RESTART = "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001"


class TestConfirm:
    @pytest.fixture
    def client(self, client_as: Any, operator: Any, hooked: Any, pace: Any, find: Callable[..., Any]) -> Client:
        find()
        client: Client = client_as(operator)
        return client

    def test_a_look_again_brings_every_part_that_names_a_step(self, client: Client) -> None:
        part = text_of(client, f"{RESTART}&when=NOW&part=figures")

        assert "back to 90" in part
        assert "step 90, the newest that can be trusted" in part
        assert "Seen at step 120." in part
        for part_id in ("saves", "seen-words", "radius"):
            assert f'id="{part_id}" hx-swap-oob="innerHTML"' in part

    def test_no_two_rows_have_one_name(self, client: Client) -> None:
        page = text_of(client, RESTART)

        assert "<td>Steps again cost</td>" in page
        assert "<td>Downtime costs</td>" in page
        assert "Lost by that" not in page


class TestLanes:
    def test_steps_that_were_done_again_belong_to_the_later_attempt(
        self, run: Any, attempt: Any, make_attempt: Any, later: Callable[[float], datetime]
    ) -> None:
        from apps.runs.services import attempt_end, attempt_progress

        attempt_progress(attempt_id=attempt.id, first_step=0, last_step=120, now=later(100))
        attempt_end(attempt_id=attempt.id, reason="PLANNED", authority="SERVER", by="t", source="API", now=later(101))
        second = make_attempt(run, key="slurm:2.0.0", now=later(110))
        alone = lanes_of(run_by_id(run.id), now=later(111))[0]["marks"]
        attempt_progress(attempt_id=second.id, first_step=90, last_step=130, now=later(120))

        newest, before = lanes_of(run_by_id(run.id), now=later(121))[0]["marks"]

        assert alone[1]["to"]["step"] == 121
        assert (before["from"]["step"], before["to"]["step"]) == (0, 90)
        assert newest["from"]["step"] == 90
        assert newest["to"] is None


class TestSlow:
    def test_only_a_finding_about_computing_makes_its_node_the_one_the_others_wait_for(
        self, attempt: Any, find: Callable[..., Any]
    ) -> None:
        find(
            cause="hang",
            level=Level.CRITICAL,
            subject=Subject(SubjectKind.RANK, rank=5, node="trn002"),
            proposal=Proposal(ProposalKind.RESTART_RUN),
        )
        find()

        assert suspect_nodes(attempt.run_id) == ["trn002", "trn001"]
        assert suspect_nodes(attempt.run_id, causes=frozenset({"compute_straggler"})) == []
        assert suspect_nodes(attempt.run_id, causes=SLOW_CAUSES) == ["trn001"]


class TestCards:
    def test_the_second_finding_says_what_to_do_next_too(
        self, client_as: Any, viewer: Any, pace: Any, find: Callable[..., Any]
    ) -> None:
        find()
        find(
            cause="gc_pause",
            subject=Subject(SubjectKind.RUN),
            next="Collect by hand between steps.",
            proposal=Proposal(),
        )

        page = text_of(client_as(viewer), "/runs/dense-7b")

        assert "Collect by hand between steps." in page[page.index("Also seen") :]

    def test_without_a_launcher_no_button_looks_as_if_paceline_could_do_it(
        self, client_as: Any, operator: Any, pace: Any, find: Callable[..., Any]
    ) -> None:
        find()

        page = text_of(client_as(operator), "/runs/dense-7b")

        assert "Exclude and restart it yourself…" in page
        assert 'class="act primary"' not in page


class TestRanksNow:
    @pytest.mark.parametrize(("hang", "word"), [("", "under way"), ("CONFIRMED", "behind")])
    def test_a_rank_whose_report_is_due_only_soon_is_not_behind(
        self, monkeypatch: pytest.MonkeyPatch, pace: Any, now: datetime, hang: str, word: str
    ) -> None:
        heard = np.full(2, now.timestamp())
        told = SimpleNamespace(
            ranks=np.array([0, 1]),
            step=np.array([100, 106]),
            phase=["compute", "compute"],
            phase_age_s=np.zeros(2),
            heard_at=heard,
            exited=(),
        )
        monkeypatch.setattr(ranks, "ranks_now", lambda _attempt, _now: told)

        page = ranks.ranks_now_page(replace(pace, step_s=1.0, hang=hang), now=now)

        assert page.rows[0].word == word


class TestActions:
    @pytest.fixture
    def action(self, client_as: Any, operator: Any, attempt: Any, now: datetime) -> Any:
        from apps.accounts.selectors import principal_of_user
        from apps.fleet.selectors import node_by_code
        from apps.remediation.selectors import action_by_id
        from apps.remediation.services import action_request

        node = node_by_code("north:trn001")
        row = action_request(
            principal=principal_of_user(operator),
            kind="EXCLUDE_NODE",
            run_id=None,
            node_id=node.id,
            reason="ECC errors on GPU 2 since noon",
            source="API",
            now=now,
        )
        return action_by_id(row.id)

    def test_are_called_by_what_they_do(self, action: Any) -> None:
        restart = replace(action, kind="RESTART_RUN", expected_state="RUNNING")

        assert action_label(action) == "exclude node"
        assert action_label(restart) == "exclude trn001 and restart run"
        assert action_label(replace(restart, nodes=(), expected_state="STOPPED")) == "start run"

    def test_what_ends_before_its_time_was_taken_back(self, action: Any, now: datetime) -> None:
        early = replace(action, state="EXPIRED", ended_at=now, expires_at=now + timedelta(minutes=1))

        assert action_word(early) == "taken back"
        assert action_word(replace(early, ended_at=early.expires_at)) == "expired"


def test_a_run_that_never_began_starts_and_does_not_restart(run: Any) -> None:
    from apps.runs.services import status_update

    status_update(run_id=run.id, open_action_kind="RESTART_RUN")

    assert run_by_id(run.id).state == "STARTING"
