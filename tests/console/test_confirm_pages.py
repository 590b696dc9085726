"""Confirming an action: what is shown before, that nothing happens by accident, and what a second press does."""

import re

import pytest

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


class TestSuspects:
    def test_the_card_has_verdict_why_next_and_the_button(self, client_as, operator, find, pace) -> None:
        find()

        page = client_as(operator).get("/runs/dense-7b").text.replace("\u00a0", " ")

        for words in ("trn001 runs hot", "8.82 s a step", "Save a checkpoint, then exclude", "Saw 4 of 4"):
            assert words in page
        assert "Exclude and restart now…" in page
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
