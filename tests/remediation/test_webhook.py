"""The webhook launcher against a real HTTP server: what each answer means, and that nothing goes out twice."""

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apps.common.ids import id_write
from apps.fleet.services import nodes_ensure
from apps.incidents.models import Incident
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation import selectors, services, tasks
from apps.remediation.launchers import webhook
from apps.remediation.models import Order
from apps.runs.selectors import attempt_by_id, attempts_of, run_by_id
from apps.runs.services import attempt_end, attempt_open, attempt_progress, status_update
from tests.remediation.conftest import is_watched
from tests.remediation.test_restart import incident_open


class Receiver:
    """A site's receiver: remembers what came and answers what the test says."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, Any], bytes, str]] = []
        self.gets: list[str] = []
        self.answers: list[tuple[int, dict[str, Any] | bytes]] = [(200, {"receipt": "job-77"})]
        self.known: tuple[int, dict[str, Any] | bytes] = (404, {})
        self.pause_s = 0.0
        self.drip_s = 0.0
        self.heads = 0
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((json.loads(body), body, self.headers["Paceline-Signature"]))
                time.sleep(receiver.pause_s)
                answers = receiver.answers
                self.answer(*(answers.pop(0) if len(answers) > 1 else answers[0]))

            def do_GET(self) -> None:
                receiver.gets.append(self.path)
                self.answer(*receiver.known)

            def answer(self, status: int, words: dict[str, Any] | bytes) -> None:
                content = words if isinstance(words, bytes) else json.dumps(words).encode()
                self.send_response(status)
                for at in range(receiver.heads):  # one line of the head at a time, each in time
                    self.flush_headers()
                    time.sleep(0.05)
                    self.send_header(f"X-{at}", "a")
                for name, value in {**receiver.headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):  # the sender was killed meanwhile
                    for at in range(len(content)) if receiver.drip_s else ():
                        time.sleep(receiver.drip_s)
                        self.wfile.write(content[at : at + 1])
                    if not receiver.drip_s:
                        self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/paceline"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    site = Receiver()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture
def hooked(make_run: Callable[..., Any], make_attempt: Callable[..., Any], receiver: Receiver) -> Any:
    """A run whose launcher is the receiver, with an open attempt on trn001 and trn002."""
    run = make_run(launcher={"kind": "WEBHOOK", "url": receiver.url, "secret": "a shared secret"})
    make_attempt(run)
    return run_by_id(run.id)


def carry_out(action: Any, *, now: datetime | None = None) -> Any:
    """Do what a worker would do once; gives the action's row."""
    moment = now or datetime.now(UTC)
    order = selectors.action_by_id(action.id).orders[-1]
    claimed = services.order_claim(order_id=order.id, now=moment)
    assert claimed is not None
    outcome = tasks.launchers.order_carry_out(claimed)
    services.order_settle(order_id=order.id, claim=claimed.claim, outcome=outcome, now=moment)
    return selectors.action_by_id(action.id)


def goodbye(run: Any) -> None:
    """Let the run's program say that it was cancelled, as one does that is asked to leave."""
    attempt_end(
        attempt_id=run.attempt_id,
        reason="CANCELLED",
        authority="CLIENT",
        by="n",
        source="SENDER",
        now=datetime.now(UTC),
    )


def look(order_id: int) -> None:
    """Read back what came of an order that is in doubt, as when its time has come."""
    Order.objects.filter(pk=order_id).update(not_before=datetime.now(UTC))
    tasks.order_look(order_id=order_id)


class TestMessage:
    def test_the_order_is_signed_and_says_what_the_contract_says(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        options = {"exclude_nodes": ["trn002"], "from_step": 40, "confirm": hooked.slug}
        action = ask("RESTART_RUN", hooked, options=options)

        carry_out(action)

        words, body, header = receiver.posts[0]
        at, digest = (part.partition("=")[2] for part in header.split(","))
        expected = hmac.new(b"a shared secret", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        assert digest == expected
        assert abs(int(at) - time.time()) < 60
        assert words["order"].startswith("ord_")
        assert words == {
            "order": words["order"],
            "action": words["action"],
            "kind": "RESTART_RUN",
            "run": "dense-7b",
            "attempt_key": f"order:{words['order']}",
            "resume_step": 40,
            "exclude_nodes": ["trn002"],
        }

    def test_without_a_secret_of_its_own_a_run_has_one_of_the_installation(
        self, make_run: Callable[..., Any], receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", make_run("plain", launcher={"kind": "WEBHOOK", "url": receiver.url}))

        carry_out(action)

        _, body, header = receiver.posts[0]
        at, digest = (part.partition("=")[2] for part in header.split(","))
        secret = webhook.webhook_secret("plain").encode()
        assert digest == hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        assert webhook.webhook_secret("plain") != webhook.webhook_secret("plain2")

    def test_a_stop_names_the_attempt_that_is_to_be_stopped(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        done = carry_out(ask("STOP_RUN", hooked))

        assert (receiver.posts[0][0]["kind"], receiver.posts[0][0]["attempt_key"]) == ("STOP_RUN", "slurm:1.0.0")
        assert done.state == "SUCCEEDED"
        assert attempt_by_id(hooked.attempt_id).reason == "PLANNED"


class TestAnswer:
    def test_a_receipt_ends_the_old_attempt_and_opens_one_that_its_key_adopts(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], work: Any, reports: Any, now: datetime
    ) -> None:
        action = carry_out(ask("RESTART_RUN", hooked))
        key = receiver.posts[0][0]["attempt_key"]
        attempt, is_new = attempt_open(
            run_id=hooked.id, key=f"{key}/worker-1", world_size=4, by="sender", source="SENDER", now=datetime.now(UTC)
        )
        reports(hooked)
        done = work(action.id)

        old, new = reversed(attempts_of(hooked.id))
        assert action.orders[0].receipt["receipt"] == "job-77"
        assert (old.reason, old.authority) == ("PLANNED", "ORDER")
        assert (attempt.id, is_new) == (new.id, False)
        assert done.state == "SUCCEEDED"

    @pytest.mark.parametrize("kind", ["STOP_RUN", "RESTART_RUN"])
    @pytest.mark.parametrize(("hang", "reason"), [("", "planned stop"), ("CONFIRMED", "hung")])
    def test_the_end_that_an_order_brings_is_told_once_though_the_program_tells_of_it_first(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], kind: str, hang: str, reason: str
    ) -> None:
        status_update(run_id=hooked.id, hang=hang)
        action = ask(kind, run_by_id(hooked.id))
        order = services.order_claim(order_id=action.orders[0].id, now=datetime.now(UTC))
        assert order is not None

        goodbye(hooked)
        outcome = tasks.launchers.order_carry_out(order)
        services.order_settle(order_id=order.id, claim=order.claim, outcome=outcome, now=datetime.now(UTC))

        ends = events_latest(StreamKey.run(hooked.id), kinds=["attempt.ended", "attempt.reason"], limit=9)
        assert [row.text for row in ends] == [f"Attempt 1 ended: {reason}"]
        assert attempt_by_id(hooked.attempt_id).authority == "ORDER"

    def test_a_program_that_is_cancelled_before_an_order_is_out_or_after_it_was_refused_was_cancelled(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], make_attempt: Callable[..., Any]
    ) -> None:
        receiver.answers = [(422, {})]
        carry_out(ask("STOP_RUN", hooked))
        ask("STOP_RUN", hooked)

        goodbye(hooked)

        assert attempt_by_id(hooked.attempt_id).reason == "CANCELLED"

    @pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 429])
    def test_4xx_is_refused_and_nothing_was_done(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], status: int
    ) -> None:
        receiver.answers = [(status, {"message": "not on my cluster"})]

        done = carry_out(ask("RESTART_RUN", hooked))

        assert (done.state, done.orders[0].state) == ("REFUSED", "REFUSED")
        assert "not on my cluster" in done.outcome
        assert run_by_id(hooked.id).attempt_state == "OPEN"
        assert run_by_id(hooked.id).open_action_id is None

    def test_503_is_asked_again_later_and_then_done(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        receiver.answers = [(503, {}), (503, {}), (200, {"receipt": "r"})]
        action = ask("RESTART_RUN", hooked)
        moment = datetime.now(UTC)

        first = carry_out(action, now=moment)
        too_early = services.order_claim(order_id=first.orders[0].id, now=moment + timedelta(seconds=0.5))
        carry_out(action, now=moment + timedelta(seconds=5))
        third = carry_out(action, now=moment + timedelta(seconds=20))

        assert (first.state, first.orders[0].state, first.orders[0].tries) == ("RUNNING", "WAITING", 1)
        assert too_early is None
        assert third.orders[0].state == "DONE"
        assert len({post[0]["order"] for post in receiver.posts}) == 1

    def test_one_that_never_comes_back_is_given_up_with_the_number_of_tries(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        receiver.answers = [(503, {})]
        action = ask("RESTART_RUN", hooked)
        moment = datetime.now(UTC)

        for number in range(6):
            done = carry_out(action, now=moment + timedelta(minutes=number))

        assert (done.state, len(receiver.posts)) == ("REFUSED", 6)
        assert "in 6 tries" in done.outcome

    def test_no_connection_is_unavailable(self, make_run: Callable[..., Any], ask: Callable[..., Any]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}/"
        action = ask("RESTART_RUN", make_run("alone", launcher={"kind": "WEBHOOK", "url": url}))

        done = carry_out(action)

        assert done.orders[0].state == "WAITING"
        assert "no connection" in done.orders[0].error

    def test_a_time_out_is_uncertain_read_back_and_never_sent_again(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "ANSWER_S", 0.3)
        receiver.pause_s = 1.0
        action = ask("RESTART_RUN", hooked)

        doubted = carry_out(action)
        attempts_meanwhile = len(attempts_of(hooked.id))
        receiver.known = (200, {"receipt": "job-78"})
        look(doubted.orders[0].id)

        found = selectors.action_by_id(action.id)
        assert (doubted.state, doubted.orders[0].state) == ("UNCERTAIN", "UNCERTAIN")
        (line,) = selectors.look_lines(doubted)
        assert id_write("ord", doubted.orders[0].id) in line
        assert "http" not in line
        assert attempts_meanwhile == 1
        assert is_watched(found)
        assert found.orders[0].receipt["receipt"] == "job-78"
        assert receiver.gets == [f"/paceline/{receiver.posts[0][0]['order']}"]
        assert len(receiver.posts) == 1

    @pytest.mark.parametrize("status", [500, 502, 504, 301, 307])
    def test_anything_else_is_uncertain_and_no_redirect_is_followed(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], status: int
    ) -> None:
        receiver.answers = [(status, {})]
        receiver.headers = {"Location": f"{receiver.url}/elsewhere"}

        done = carry_out(ask("RESTART_RUN", hooked))

        assert done.state == "UNCERTAIN"
        assert len(receiver.posts) == 1
        assert receiver.gets == []

    def test_not_known_to_the_receiver_is_believed_only_after_a_while(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        receiver.answers = [(500, {})]
        action = ask("STOP_RUN", hooked)
        order_id = carry_out(action).orders[0].id

        look(order_id)
        soon = selectors.action_by_id(action.id).state
        Order.objects.filter(pk=order_id).update(claimed_at=datetime.now(UTC) - timedelta(minutes=2))
        look(order_id)

        row = selectors.action_by_id(action.id)
        assert soon == "UNCERTAIN"
        assert (row.state, row.orders[0].state) == ("RUNNING", "WAITING")

    def test_the_receiver_is_asked_once_however_often_the_clock_finds_the_order_in_doubt(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        receiver.answers = [(500, {})]
        order_id = carry_out(ask("RESTART_RUN", hooked)).orders[0].id
        due = datetime.now(UTC) + timedelta(seconds=2)

        first = services.order_look_claim(order_id=order_id, now=due, for_s=60)
        meanwhile = services.order_look_claim(order_id=order_id, now=due + timedelta(seconds=30), for_s=60)
        after_it_died = services.order_look_claim(order_id=order_id, now=due + timedelta(seconds=61), for_s=60)

        assert first is not None
        assert meanwhile is None
        assert after_it_died is not None

    def test_a_person_s_word_ends_the_doubt(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], who: Any
    ) -> None:
        receiver.answers = [(500, {})]
        action = carry_out(ask("RESTART_RUN", hooked))

        done = services.action_settle(
            principal=who,
            action_id=action.id,
            outcome="FAILED",
            reason="The receiver's log says it crashed",
            now=datetime.now(UTC),
        )

        assert done.state == "FAILED"
        assert run_by_id(hooked.id).attempt_id == hooked.attempt_id

    @pytest.fixture
    def doubted(self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]) -> Any:
        """A restart of which nobody knows whether the receiver carried it out."""
        receiver.answers = [(500, {})]
        return carry_out(ask("RESTART_RUN", hooked))

    def settle(self, action: Any, who: Any, outcome: str = "SUCCEEDED") -> Any:
        words = {"outcome": outcome, "reason": "The receiver's log says that it did"}
        return services.action_settle(principal=who, action_id=action.id, now=datetime.now(UTC), **words)

    def test_a_person_s_word_that_it_was_done_does_what_a_receipt_does(
        self, hooked: Any, doubted: Any, ask: Callable[..., Any], who: Any, work: Any, reports: Any
    ) -> None:
        incident = incident_open(hooked, "hang")
        watched = self.settle(doubted, who)
        state_meanwhile = run_by_id(hooked.id).state
        with pytest.raises(services.ActionOpen):
            ask("RESTART_RUN", run_by_id(hooked.id))
        reports(hooked)
        done = work(doubted.id)

        old, new = reversed(attempts_of(hooked.id))
        assert is_watched(watched)
        assert watched.attempt_id == new.id
        assert state_meanwhile == "RESTARTING"
        assert (old.reason, old.authority, new.state) == ("PLANNED", "ORDER", "OPEN")
        assert (done.state, done.decided_by) == ("SUCCEEDED", "operator")
        assert Incident.objects.get(pk=incident).state == "MITIGATED"

    def test_what_a_person_settled_stays_settled(self, hooked: Any, doubted: Any, who: Any) -> None:
        self.settle(doubted, who)

        with pytest.raises(services.ActionMoved) as refused:
            self.settle(doubted, who, "FAILED")

        after = selectors.action_by_id(doubted.id)
        assert refused.value.http_status == 409
        assert refused.value.message == (
            "operator has said already that it was carried out, and that stands; the action is running."
        )
        assert is_watched(after)
        assert [row.state for row in after.orders] == ["DONE"]

    def test_a_start_that_is_watched_is_in_no_doubt(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], who: Any
    ) -> None:
        receiver.answers = [(200, {"receipt": "job-78"})]
        action = carry_out(ask("RESTART_RUN", hooked))
        assert is_watched(action)

        with pytest.raises(services.ActionMoved) as refused:
            self.settle(action, who, "FAILED")

        after = selectors.action_by_id(action.id)
        said = [row.text for row in events_latest(StreamKey.run(hooked.id), limit=500)]
        assert "the start was carried out" in refused.value.message
        assert is_watched(after)
        assert not [text for text in said if "was not carried out" in text]

    def test_a_start_that_says_nothing_is_waited_for_no_longer_once_somebody_says_so(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], who: Any
    ) -> None:
        receiver.answers = [(200, {"receipt": "job-79"}), (200, {"receipt": "job-79"})]
        action = carry_out(ask("RESTART_RUN", hooked))
        assert action.waits_for_report

        done = self.settle(action, who)

        assert (done.state, done.decided_by) == ("SUCCEEDED", "operator")
        assert not done.waits_for_report
        assert ask("STOP_RUN", hooked).state in ("REQUESTED", "RUNNING")  # the run can be acted on again

    @pytest.mark.parametrize("key", ["order:{}", "order:{}/worker-1", "slurm:77.0.0"])
    @pytest.mark.parametrize("by", ["a person", "the receiver"])
    def test_a_program_that_reported_meanwhile_is_what_was_started(
        self, hooked: Any, receiver: Receiver, doubted: Any, who: Any, key: str, by: str
    ) -> None:
        attempt_end(
            attempt_id=hooked.attempt_id,
            reason="UNKNOWN",
            authority="SILENCE",
            by="t",
            source="API",
            now=datetime.now(UTC),
        )
        mine = key.format(receiver.posts[0][0]["order"])
        begun, _ = attempt_open(
            run_id=hooked.id, key=mine, world_size=4, by="sender", source="SENDER", now=datetime.now(UTC)
        )

        if by == "a person":
            self.settle(doubted, who)
        else:
            receiver.known = (200, {"receipt": "job-78"})
            look(doubted.orders[0].id)

        assert selectors.action_by_id(doubted.id).attempt_id == begun.id
        assert [(row.number, row.state) for row in attempts_of(hooked.id)] == [(2, "OPEN"), (1, "ENDED")]

    def test_a_program_that_is_through_before_the_receiver_is_heard_was_started_too(
        self, hooked: Any, receiver: Receiver, doubted: Any
    ) -> None:
        key = f"order:{receiver.posts[0][0]['order']}"
        begun, _ = attempt_open(
            run_id=hooked.id, key=key, world_size=4, by="s", source="SENDER", now=datetime.now(UTC), force=True
        )
        attempt_progress(attempt_id=begun.id, first_step=1, last_step=9, now=datetime.now(UTC))
        attempt_end(
            attempt_id=begun.id, reason="FINISHED", authority="CLIENT", by="s", source="SENDER", now=datetime.now(UTC)
        )
        receiver.known = (200, {"receipt": "job-78"})

        look(doubted.orders[0].id)
        services.action_watch(action_id=doubted.id, now=datetime.now(UTC) + timedelta(minutes=1))

        assert selectors.action_by_id(doubted.id).state == "SUCCEEDED"
        assert [row.reason for row in attempts_of(hooked.id)] == ["FINISHED", "SUPERSEDED"]

    @pytest.mark.parametrize(
        ("body", "receipt"),
        [
            (b'{"receipt": "a\\u0000b"}', "a\ufffdb"),
            (b'{"receipt": "a\\ud800b"}', ""),
            (b'{"receipt": "job\\n7"}', "job 7"),
            (b"[" * 100_000, ""),
            (b'{"receipt": ' + b"[" * 60_000, ""),
            (b'{"receipt": NaN}', ""),
            (b'{"receipt": {"job": 7}}', ""),
            (b'{"receipt": true}', ""),
            (b'{"receipt": 77}', "77"),
            (b'{"receipt": "' + b"x" * 200_000 + b'"}', ""),
            (b"\xff\xfe", ""),
        ],
    )
    def test_a_yes_is_a_yes_whatever_stands_in_it(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], body: bytes, receipt: str
    ) -> None:
        receiver.answers = [(200, body)]

        done = carry_out(ask("RESTART_RUN", hooked))

        assert is_watched(done)
        assert done.orders[0].receipt["receipt"] == receipt

    @pytest.mark.parametrize("body", [b'{"message": "a\\u0000b"}', b"[" * 100_000, b'{"message": {"a": [1]}}'])
    def test_a_no_is_a_no_and_a_doubt_is_read_back_whatever_stands_in_it(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], body: bytes
    ) -> None:
        receiver.answers, receiver.known = [(422, body), (500, body)], (200, body)

        refused = carry_out(ask("RESTART_RUN", hooked))
        doubted = carry_out(ask("RESTART_RUN", hooked))
        look(doubted.orders[0].id)

        assert (refused.state, doubted.state) == ("REFUSED", "UNCERTAIN")
        assert is_watched(selectors.action_by_id(doubted.id))

    def test_a_receiver_that_never_ends_its_answer_does_not_hold_up_the_others(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "ANSWER_S", 0.3)
        receiver.drip_s = 0.05  # each byte comes in time

        done = carry_out(ask("RESTART_RUN", hooked))

        assert done.state == "UNCERTAIN"
        assert "did not end in time" in done.orders[0].error

    def test_a_head_that_never_ends_holds_nobody_up_and_is_in_doubt(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "ANSWER_S", 0.3)
        receiver.heads = 90  # fewer than a reader of heads takes

        done = carry_out(ask("RESTART_RUN", hooked))

        assert done.state == "UNCERTAIN"
        assert "did not end in time" in done.orders[0].error

    def test_an_answer_that_is_no_json_is_still_a_receipt(
        self, hooked: Any, receiver: Receiver, ask: Callable[..., Any]
    ) -> None:
        receiver.answers = [(204, {})]

        assert is_watched(carry_out(ask("RESTART_RUN", hooked)))


def test_excluded_nodes_are_named_in_every_later_start(
    hooked: Any, receiver: Receiver, ask: Callable[..., Any], now: datetime
) -> None:
    nodes = nodes_ensure(cluster_id=hooked.cluster_id, names=["trn001"], now=now)
    ask("EXCLUDE_NODE", node=nodes["trn001"])

    carry_out(ask("RESTART_RUN", hooked))

    assert receiver.posts[0][0]["exclude_nodes"] == ["trn001"]
