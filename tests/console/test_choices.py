"""What pages say where something has to be chosen or is in doubt: saves, moments, limits, a critical finding's headline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.common.ids import id_write
from apps.engine.detection import Level, Proposal, Subject, SubjectKind

from .conftest import HOT
from .test_confirm_pages import hidden


@pytest.fixture
def hooked(run: Any, now: datetime) -> Any:
    """The run has a launcher, so that its restart can be asked for, and is known to save each 45 steps."""
    from apps.runs.services import run_put

    fields = {"launcher": {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/hook"}, "checkpoint": {"interval_steps": 45}}
    run_put(slug="dense-7b", cluster_id=run.cluster_id, fields=fields, by="t", source="API", now=now)
    return run


@pytest.fixture
def nan(find: Callable[..., Any]) -> Any:
    """A NaN on rank 5 that does not stop: every save since step 50 is suspect."""
    return find(
        cause="numeric_fault",
        level=Level.CRITICAL,
        subject=Subject(SubjectKind.RANK, rank=5, node="trn002"),
        verdict="Rank 5 on trn002: loss was NaN in 40 steps from step 50 to 89; all others stayed finite.",
        since_step=50,
        proposal=Proposal(),
        cells=(),
        cost_s=None,
    )


def proposed(run: Any, find: Callable[..., Any], moment: datetime) -> int:
    """Let a hot trn001 lead to a proposal; return it."""
    from apps.remediation.selectors import actions_of
    from apps.remediation.services import findings_consider
    from apps.runs.services import run_put

    run_put(slug=run.slug, cluster_id=run.cluster_id, fields={"mode": "PROPOSE"}, by="t", source="API", now=moment)
    find(HOT)
    findings_consider(now=moment)
    (row,) = actions_of(states=["PROPOSED"])
    return row.id


def text_of(client: Client, address: str) -> str:
    return client.get(address).text.replace("\u00a0", " ")


def form_of(client: Client, address: str) -> dict[str, str]:
    """What the confirm page at an address would send, without the reason."""
    page = client.get(address).text
    names = [name for name in ("kind", "node", "key", "expected_attempt", "expected_state") if f'name="{name}"' in page]
    return {name: hidden(page, name) for name in names} | {"when": "NOW"}


class TestCriticalFinding:
    def test_is_the_headline_of_a_run_that_goes_on(self, client_as: Any, viewer: Any, pace: Any, nan: Any) -> None:
        from apps.runs.services import status_update

        status_update(run_id=pace.id, slow=False)
        reader = client_as(viewer)

        for page in (text_of(reader, "/runs/dense-7b"), text_of(reader, "/runs")):
            assert '<span class="st crit">NaN or Inf' in page
            assert "On pace" not in page
        assert "Rank 5 on trn002: loss was NaN in 40 steps" in text_of(reader, "/runs/dense-7b")


class TestWithoutATrustedSave:
    @pytest.fixture
    def confirm(self, client_as: Any, operator: Any, hooked: Any, pace: Any, nan: Any) -> Client:
        client: Client = client_as(operator)
        return client

    def test_the_head_names_the_suspect_one_as_such(self, confirm: Client) -> None:
        page = text_of(confirm, "/runs/dense-7b")

        assert "suspect; none can be trusted" in page
        assert "none yet" not in page
        assert "no checkpoint can be trusted: you choose one, the price follows" in page

    def test_a_person_must_choose_and_the_price_follows(self, confirm: Client) -> None:
        address = "/runs/dense-7b/actions/new?kind=RESTART_RUN"

        asked, suspect = text_of(confirm, address), text_of(confirm, f"{address}&from_step=90")

        assert (
            '<select class="input" name="from_step" id="from-step" required><option value="" selected>choose …' in asked
        )
        assert '<option value="90">step 90, suspect: saved after a finding began</option>' in asked
        assert '<option value="0">the beginning, step 0</option>' in asked
        assert "choose one below, and the price follows" in asked
        assert '<option value="90" selected>' in suspect
        assert "choose one below" not in suspect

    def test_without_a_choice_nothing_is_done_and_the_sentence_says_what_to_choose(self, confirm: Client) -> None:
        from apps.remediation.models import Action

        address = "/runs/dense-7b/actions/new?kind=RESTART_RUN"

        answer = confirm.post(address, form_of(confirm, address) | {"reason": "NaN on rank 5 since noon"})

        assert answer.status_code == 422
        assert "No checkpoint of dense-7b can be trusted" in answer.text
        assert not Action.objects.exists()


class TestTakingUpWithoutATrustedSave:
    """The page of a proposal has the restart form's choice."""

    @pytest.fixture
    def proposal(self, hooked: Any, pace: Any, nan: Any, find: Callable[..., Any]) -> str:
        """A proposal to leave trn001 out, while every save is suspect: its page."""
        return f"/actions/{id_write('act', proposed(hooked, find, datetime.now(UTC)))}"

    def test_a_person_must_choose_and_the_price_follows(self, client_as: Any, operator: Any, proposal: str) -> None:
        client = client_as(operator)

        asked, cost = text_of(client, proposal), text_of(client, f"{proposal}?part=cost&from_step=0")
        again = text_of(client, f"{proposal}?part=1&from_step=90&reason=fan+is+broken")

        assert 'id="from-step" required><option value="" selected>choose …' in asked
        assert '<option value="0">the beginning, step 0</option>' in asked
        assert "Costs no checkpoint can be trusted: you choose one, the price follows." in asked
        assert "you choose one" not in cost
        assert cost.startswith("Costs ")
        assert '<option value="90" selected>step 90, suspect' in again
        assert 'value="fan is broken"' in again

    def test_what_was_chosen_there_is_done(self, client_as: Any, operator: Any, proposal: str) -> None:
        from apps.remediation.selectors import action_by_code

        client, form = client_as(operator), {"act": "accept", "reason": "throttles on heat since noon"}

        without = client.post(f"{proposal}/decide", form)
        accepted = client.post(f"{proposal}/decide", {**form, "from_step": "0"})

        row = action_by_code(proposal.rpartition("/")[2])
        assert (without.status_code, accepted.status_code) == (422, 302)
        assert "No checkpoint of dense-7b can be trusted" in without.text
        assert (row.state, row.options["from_step"]) == ("REQUESTED", 0)

    def test_a_proposal_is_dismissed_without_a_choice(self, client_as: Any, operator: Any, proposal: str) -> None:
        page = text_of(client_as(operator), proposal)

        assert 'value="dismiss" type="submit" formnovalidate' in page


class TestTakingUpWhileASaveCompletes:
    def test_the_newer_save_is_told_once_and_nothing_is_done_before(
        self, client_as: Any, operator: Any, hooked: Any, attempt: Any, pace: Any, find: Callable[..., Any]
    ) -> None:
        from apps.remediation.selectors import action_by_id
        from apps.runs.services import CheckpointFact, checkpoint_note

        moment, client = datetime.now(UTC), client_as(operator)
        action = proposed(hooked, find, moment)
        page, reason = f"/actions/{id_write('act', action)}", "throttles on heat since noon"
        shown = hidden(client.get(page).text, "shown_step")
        fact = CheckpointFact(step=110, state="SAVED", happened_at=moment, duration_s=100.0, blocking_s=12.0)
        checkpoint_note(attempt_id=attempt.id, fact=fact, source="SENDER", actor_name="", now=moment)

        form = {"act": "accept", "reason": reason}
        first = client.post(f"{page}/decide", form | {"shown_step": shown})
        state = action_by_id(action).state
        second = client.post(f"{page}/decide", form | {"shown_step": hidden(client.get(page).text, "shown_step")})

        assert (shown, first.status_code, state) == ("90", 409, "PROPOSED")
        assert "A newer save completed since you looked: step 110; nothing was done." in first.text
        assert (second.status_code, action_by_id(action).state) == (302, "REQUESTED")


class TestTitle:
    @pytest.mark.parametrize(
        ("kind", "title"), [("EXCLUDE_NODE", "Exclude trn002"), ("READMIT_NODE", "Take trn002 back")]
    )
    def test_an_action_is_called_as_its_button_was(
        self, client_as: Any, operator: Any, attempt: Any, kind: str, title: str
    ) -> None:
        client = client_as(operator)
        address, words = "/nodes/north/trn002/actions/new?kind=", {"reason": "ECC errors since noon"}
        if_back = ["EXCLUDE_NODE", kind] if kind == "READMIT_NODE" else [kind]

        for one in if_back:
            asked = client.get(f"{address}{one}").text
            done = client.post(f"{address}{one}", {**words, "kind": one, "key": hidden(asked, "key")}, follow=True).text

        assert f">{title}</button>" in asked
        assert f"<title>{title}" in done
        assert f"<h1>{title}</h1>" in done
        assert f"/ {title}</p>" in done


class TestMoment:
    def test_the_cheapest_is_chosen_unless_a_link_names_another(
        self,
        client_as: Any,
        operator: Any,
        hooked: Any,
        pace: Any,
        make_run: Any,
        make_attempt: Any,
        find: Any,
        later: Any,
    ) -> None:
        from apps.runs.services import attempt_progress

        attempt_progress(attempt_id=pace.attempt_id, first_step=0, last_step=1, now=later(30))
        find()
        client = client_as(operator)

        free, named = (
            text_of(client, f"/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001{more}")
            for more in ("", "&when=NOW")
        )

        assert 'value="CHECKPOINT_FIRST" data-button="Checkpoint, exclude, restart" checked' in free
        assert 'value="NOW" data-button="Exclude and restart now" checked' in named
        assert "first restart of this run, estimated from how long its own start took" in free


class TestLimits:
    def test_are_said_in_one_sentence_wherever_they_are_said(
        self, client_as: Any, operator: Any, hooked: Any, pace: Any, find: Any
    ) -> None:
        words = "0 of 2 nodes of dense-7b are out; at most 1 at once, 6 exclusions in 24 h, 0 used"
        find()
        client = client_as(operator)

        assert words in text_of(client, "/runs/dense-7b")
        assert words in text_of(client, "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001")

    def test_a_refusal_leads_to_the_ledger_and_to_the_guards(
        self, client_as: Any, operator: Any, hooked: Any, pace: Any, find: Any
    ) -> None:
        client = client_as(operator)
        out = "/nodes/north/trn002/actions/new?kind=EXCLUDE_NODE"
        client.post(out, {"kind": "EXCLUDE_NODE", "key": "k" * 24, "reason": "ECC errors on GPU 2 since noon"})
        find()
        address = "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001"

        page = text_of(client, address)
        answer = client.post(address, form_of(client, address) | {"reason": "hot since 01:56 today"})

        assert "1 of 2 nodes of dense-7b is out, at most 1 at once; this would make it 2" in page
        assert "take a node back, raise the limit under Settings, or stop the run" in text_of(client, "/runs/dense-7b")
        assert answer.status_code == 422
        for shown in (page, answer.text):
            assert 'href="/nodes#ledger"' in shown
            assert 'href="/settings#guards"' in shown


def test_a_stopped_run_is_named_by_what_stopped_it(
    client_as: Any, viewer: Any, attempt: Any, pace: Any, nan: Any, find: Any, later: Any
) -> None:
    from apps.runs.services import attempt_end

    find(
        replace(
            HOT,
            cause="rank_lost",
            level=Level.CRITICAL,
            since_step=120,
            verdict="Lost: trn001. Nothing is heard of it.",
        ),
        at=later(5),
    )
    attempt_end(attempt_id=attempt.id, reason="CRASHED", authority="WRAPPER", by="w", source="LAUNCHER", now=later(9))

    page = text_of(client_as(viewer), "/runs")

    assert "Stopped by failure" in page
    assert "Lost" in page
    assert "Rank 5 on trn002" not in page


class TestWatchedStart:
    """A start that was carried out, whose program says nothing: a job may wait in its queue for days."""

    @pytest.fixture
    def watched(self, hooked: Any, now: datetime) -> str:
        from apps.remediation.models import Action, Order

        action = Action.objects.create(
            kind="RESTART_RUN", state="RUNNING", run_id=hooked.id, reason="again without it", requested_by="mia",
            requested_by_key="user:1", source="WEB", requested_at=now, expires_at=now + timedelta(minutes=10), options={},
        )  # fmt: skip
        Order.objects.create(action=action, kind="LAUNCH", launcher="WEBHOOK", state="DONE", not_before=now)
        return id_write("act", action.pk)

    def test_is_waited_for_no_longer_once_an_operator_says_so(
        self, client_as: Any, operator: Any, watched: str
    ) -> None:
        from apps.remediation.selectors import action_by_code

        page = text_of(client_as(operator), f"/actions/{watched}")
        told = {"act": "settle", "outcome": "SUCCEEDED", "reason": "it waits in a long queue"}
        client_as(operator).post(f"/actions/{watched}/decide", told)

        assert "Wait no longer; the run is free for another action" in page
        assert action_by_code(watched).state == "SUCCEEDED"
        assert "Wait no longer" not in text_of(client_as(operator), f"/actions/{watched}")

    def test_is_only_looked_at_by_a_viewer(self, client_as: Any, viewer: Any, watched: str) -> None:
        assert "Wait no longer" not in text_of(client_as(viewer), f"/actions/{watched}")
