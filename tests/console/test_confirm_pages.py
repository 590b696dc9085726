"""Confirming an action: what is shown before, that nothing happens by accident, and what a second press does."""

import html
import re

import pytest

from apps.engine.detection import Proposal, Subject, SubjectKind

REASON = "Throttles on heat since 01:56, all GPUs"


def hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found, name
    return found.group(1)


@pytest.fixture
def confirm(client_as, operator, find, pace):
    """The confirm page of excluding trn001 and restarting, and the form it holds."""
    find()
    client = client_as(operator)
    address = "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001&when=NOW"
    page = client.get(address)
    fields = ("kind", "node", "key", "expected_attempt", "expected_state", "finding")
    form = {name: hidden(page.text, name) for name in fields} | {"when": "NOW", "reason": REASON}
    return client, address, page, form


class TestBefore:
    def test_it_says_what_stops_what_it_costs_and_what_must_hold(self, confirm) -> None:
        page = confirm[2].text

        for words in ("Exclude trn001 and restart dense-7b", "8 GPUs stop", "Steps to do again", "Blast radius"):
            assert words in page
        assert "no other action on this run" in page

    def test_a_price_that_nobody_measured_is_not_zero(self, confirm) -> None:
        assert "not measured" in confirm[2].text

    def test_a_run_without_a_launcher_gets_commands_to_copy(self, confirm) -> None:
        page = confirm[2].text

        assert "Copy the command instead" in page
        assert "scontrol update NodeName=trn001" in page
        assert 'id="go"' not in page

    def test_a_viewer_sees_the_price_and_cannot_press(self, client_as, viewer, find, pace) -> None:
        find()
        client = client_as(viewer)

        page = client.get("/runs/dense-7b").text

        assert "You may look at north, not act on it." in page

    def test_a_viewer_sees_no_command_and_no_address_of_a_launcher(
        self, client_as, viewer, operator, run, find, pace, now
    ) -> None:
        from apps.runs.services import run_put

        find()
        launcher = {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/hook-with-a-word"}
        run_put(
            slug="dense-7b", cluster_id=run.cluster_id, fields={"launcher": launcher}, by="t", source="API", now=now
        )
        address = "/runs/dense-7b/actions/new?kind=RESTART_RUN&node=trn001&when=NOW"

        seen = [
            client_as(who).get(f"{address}{part}").text for who in (viewer, operator) for part in ("", "&part=figures")
        ]

        assert [("hook-with-a-word" in page, "scontrol update" in page) for page in seen] == [
            (False, False),
            (False, False),
            (True, True),
            (True, True),
        ]

    def test_why_a_run_cannot_be_restarted_stands_on_its_button_with_names_as_they_are(
        self, client_as, operator, find, pace
    ) -> None:
        find()

        page = client_as(operator).get("/runs/dense-7b").text

        assert "no launcher is set for this run, so Paceline may not start or stop it" in page

    def test_an_unknown_kind_is_refused(self, client_as, operator, attempt) -> None:
        assert client_as(operator).get("/runs/dense-7b/actions/new?kind=EXPLODE").status_code == 400


class TestAsking:
    def test_excluding_a_node_alone_is_done_at_once_and_shown_step_by_step(self, client_as, operator, attempt) -> None:
        client = client_as(operator)
        address = "/nodes/north/trn002/actions/new?kind=EXCLUDE_NODE"
        page = client.get(address).text
        form = {"kind": "EXCLUDE_NODE", "key": hidden(page, "key"), "reason": "ECC errors on GPU 2 since noon"}

        answer = client.post(address, form, follow=True)

        assert "Succeeded" in answer.text
        assert "out" in client.get("/nodes").text
        assert "ECC errors on GPU 2 since noon" in client.get("/nodes").text

    def test_a_second_press_shows_the_same_action(self, client_as, operator, attempt) -> None:
        from apps.remediation.models import Action

        client = client_as(operator)
        address = "/nodes/north/trn002/actions/new?kind=EXCLUDE_NODE"
        form = {"kind": "EXCLUDE_NODE", "key": hidden(client.get(address).text, "key"), "reason": REASON}

        first, second = client.post(address, form), client.post(address, form)

        assert first["Location"] == second["Location"]
        assert Action.objects.count() == 1

    def test_too_short_a_reason_keeps_what_was_typed(self, client_as, operator, attempt) -> None:
        client = client_as(operator)
        address = "/nodes/north/trn002/actions/new?kind=EXCLUDE_NODE"
        form = {"kind": "EXCLUDE_NODE", "key": hidden(client.get(address).text, "key"), "reason": "hot"}

        answer = client.post(address, form)

        assert answer.status_code == 400
        assert "at least 10 characters" in answer.text
        assert ">hot</textarea>" in answer.text

    def test_a_run_that_moved_on_is_looked_at_again(self, confirm, make_attempt, run, later) -> None:
        from apps.remediation.models import Action

        client, address, _, form = confirm
        make_attempt(run, key="slurm:2.0.0", force=True, now=later(60))

        answer = client.post(address, form)

        assert answer.status_code == 409
        assert "The run moved on" in answer.text
        assert Action.objects.count() == 0

    def test_what_was_done_by_hand_is_recorded(self, confirm) -> None:
        client, address, _, form = confirm

        answer = client.post(address, {**form, "done": "1", "command": "scontrol update NodeName=trn001"}, follow=True)

        assert answer.status_code == 200
        assert "Record what was done by hand" in answer.text

    def test_a_viewer_who_posts_is_refused(self, client_as, viewer, attempt) -> None:
        address = "/nodes/north/trn002/actions/new?kind=EXCLUDE_NODE"

        answer = client_as(viewer).post(address, {"kind": "EXCLUDE_NODE", "key": "k" * 20, "reason": REASON})

        assert answer.status_code == 403


class TestOneNodeLost:
    """Its silence and the run that stands without it are its wave: one suspect, the others folded beneath it."""

    @pytest.fixture
    def page(self, client_as, operator, find, pace, later) -> str:
        from apps.engine.detection import Certainty, Level

        more = {"level": Level.WARNING, "proposal": Proposal(), "cells": (), "cost_s": None}
        find(cause="no_telemetry", verdict="trn001 is silent.", **more)
        find(cause="hang", subject=Subject(SubjectKind.RUN), verdict="The run may hang.", at=later(1), **more)
        find(
            cause="rank_lost",
            level=Level.CRITICAL,
            certainty=Certainty.CONFIRMED,
            verdict="Lost: trn001. Nothing is heard of its ranks 0, 1, 2 and 3.",
            cells=(),
            cost_s=None,
            at=later(2),
        )
        return client_as(operator).get("/runs/dense-7b").text.replace("\u00a0", " ")

    def test_is_one_suspect_with_what_follows_from_it_folded_beneath(self, page: str) -> None:
        suspects, _, beneath = page.partition("2 findings that follow from it")

        assert '<span class="faint">1 open' in suspects
        assert "Lost: trn001" in suspects
        assert "trn001 is silent." in beneath
        assert "The run may hang." in beneath
        assert page.count("trn001 is silent.</b>") == 0

    def test_another_fault_beside_it_is_a_suspect_of_its_own(self, page: str, find, client_as, operator) -> None:
        find(cause="power_cap", subject=Subject(SubjectKind.NODE, node="trn002"), verdict="trn002 is capped.")

        page = client_as(operator).get("/runs/dense-7b").text

        assert '<span class="faint">2 open' in page


class TestSuspects:
    def test_the_card_has_verdict_why_next_and_the_button(self, client_as, operator, find, pace) -> None:
        find()

        page = client_as(operator).get("/runs/dense-7b").text.replace("\u00a0", " ")

        for words in ("trn001 runs hot", "8.82 s a step", "Save a checkpoint, then exclude", "Saw 4 of 4"):
            assert words in page
        assert "Exclude and restart it yourself…" in page
        assert "data-show-cells" in page

    def test_a_dismissed_finding_stays_visible_and_quiet(self, client_as, operator, find, pace) -> None:
        from apps.diagnosis.selectors import findings_of

        find()
        client = client_as(operator)
        number = findings_of(run_id=pace.id)[0].id

        client.post(f"/runs/dense-7b/findings/{number}/mute", {"reason": "known, filter change", "for": ""})

        page = client.get("/runs/dense-7b").text
        assert "quiet: known, filter change" in page
        assert "0 open" in page


class TestANewerSave:
    """One that completes while the question stands open: what is pressed is what was shown, or it is asked once more."""

    ADDRESS = "/runs/dense-7b/actions/new?kind=RESTART_RUN&when=NOW"
    FIELDS = ("kind", "key", "expected_attempt", "expected_state", "shown_step", "shown_NOW", "shown_CHECKPOINT_FIRST")

    @pytest.fixture
    def saved(self, attempt, now):
        from apps.runs.services import CheckpointFact, checkpoint_note

        def note(step: int) -> None:
            fact = CheckpointFact(step=step, state="SAVED", happened_at=now, duration_s=100.0, blocking_s=12.0)
            checkpoint_note(attempt_id=attempt.id, fact=fact, source="SENDER", actor_name="", now=now)

        return note

    @pytest.fixture
    def asked(self, client_as, operator, run, now, pace):
        from apps.runs.services import run_put

        fields = {
            "launcher": {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/hook"},
            "checkpoint": {"interval_steps": 45},
        }
        run_put(slug="dense-7b", cluster_id=run.cluster_id, fields=fields, by="t", source="API", now=now)
        client = client_as(operator)
        return client, self.form(client.get(self.ADDRESS).text)

    def form(self, page: str, **more: str) -> dict[str, str]:
        again = {"again": "1"} if 'name="again"' in page else {}
        found = {name: html.unescape(hidden(page, name)) for name in self.FIELDS}
        return found | again | {"when": "NOW", "from_step": "", "reason": REASON} | more

    def resumed(self) -> list[int | None]:
        from apps.remediation.models import Action

        return [row.options.get("from_step") for row in Action.objects.order_by("pk")]

    def test_asks_once_more_with_what_is_lost_now_and_keeps_what_was_typed(self, asked, saved) -> None:
        client, form = asked
        saved(110)

        answer = client.post(self.ADDRESS, form)
        pressed = client.post(self.ADDRESS, self.form(answer.text))

        said = html.unescape(answer.text).replace("\u00a0", " ")
        assert answer.status_code == 409
        assert "A newer save completed while this stood open: step 110, lost now 10 steps" in said
        assert "instead of 30 steps" in said
        assert f">{REASON}</textarea>" in answer.text
        assert pressed.status_code == 302
        assert self.resumed() == [None]

    def test_asks_no_third_time_and_goes_on_from_what_was_shown(self, asked, saved) -> None:
        client, form = asked
        saved(110)
        again = self.form(client.post(self.ADDRESS, form).text)
        saved(115)

        answer = client.post(self.ADDRESS, again)

        assert answer.status_code == 302
        assert self.resumed() == [110]

    def test_asks_nobody_who_chose_a_checkpoint(self, asked, saved) -> None:
        client, form = asked
        saved(110)

        answer = client.post(self.ADDRESS, form | {"from_step": "90"})

        assert answer.status_code == 302
        assert self.resumed() == [90]

    def test_asks_who_waits_for_a_save_too(self, asked, saved) -> None:
        client, form = asked
        saved(110)

        answer = client.post(self.ADDRESS, form | {"when": "CHECKPOINT_FIRST"})
        pressed = client.post(self.ADDRESS, self.form(answer.text, when="CHECKPOINT_FIRST"))

        assert answer.status_code == 409
        assert "the next one is about step" in answer.text
        assert pressed.status_code == 302

    def test_changes_nothing_for_a_press_that_is_repeated(self, asked, saved) -> None:
        client, form = asked
        first = client.post(self.ADDRESS, form)
        saved(110)

        second = client.post(self.ADDRESS, form)

        assert first["Location"] == second["Location"]
