"""Checking a node: only where nobody computes, begun once whoever dies, in time, its result in the ledger."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from apps.common.errors import BadRequest, Forbidden
from apps.common.ids import id_write
from apps.fleet.models import NodeStatus
from apps.fleet.selectors import exclusions_of, notes_of_node
from apps.fleet.services import exclusion_open, ledger_note, nodes_ensure
from apps.remediation import launchers, tasks
from apps.remediation.models import Order
from apps.remediation.selectors import action_by_id
from apps.remediation.services import GuardClosed, check_set, check_unset, order_claim, order_doubt
from tests.remediation.conftest import wait_for

pytestmark = pytest.mark.django_db
SOON = 20.0


@pytest.fixture
def node(cluster: int, now: datetime) -> int:
    return nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]


@pytest.fixture
def set_check(boss: Any, cluster: int, launches: Path) -> Callable[..., Any]:
    """Set how nodes are checked: `set_check("import sys; sys.exit(3)")` runs that as a program."""

    def make(*command: str, **more: Any) -> Any:
        given: dict[str, Any] = {
            "kind": "COMMAND",
            "command": list(command),
            "url": "",
            "secret": None,
            "timeout_s": 30.0,
            "valid_s": 3600,
            "required": False,
        }
        return check_set(principal=boss, cluster_id=cluster, source="API", now=datetime.now(UTC), **{**given, **more})

    return make


def python(text: str, *words: str) -> list[str]:
    return ["/usr/bin/env", "python3", "-S", "-c", text, *words]


@pytest.fixture
def checked() -> Callable[..., Any]:
    """Do what workers would do until a check is over; gives its action."""
    from apps.remediation import selectors, tasks

    def run(action_id: int, seconds: float = SOON) -> Any:
        def step() -> Any:
            for order_id in selectors.checks_due(now=datetime.now(UTC)):
                tasks.check_run(order_id=order_id)
            row = action_by_id(action_id)
            return row if not row.is_open else None

        return wait_for(step, "the check", seconds)

    return run


class TestCommand:
    def test_a_check_that_passes_stands_in_the_ledger_until_it_expires(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> None:
        set_check(*python("import sys; print('all', sys.argv[1], 'well')", "{node}"))
        row = checked(ask("CHECK_NODE", node=node).id)

        (note,) = notes_of_node(node)
        assert row.state == "SUCCEEDED"
        assert (note.kind, note.by_name, note.action_id) == ("PASSED", "operator", row.id)
        assert "all trn001 well" in note.text
        assert note.until_at is not None
        assert note.until_at - note.at == timedelta(hours=1)

    def test_a_check_that_does_not_pass_says_with_which_last_words(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> None:
        set_check(*python("import sys; print('GPU 3: ECC', file=sys.stderr); sys.exit(3)"))
        row = checked(ask("CHECK_NODE", node=node).id)

        (note,) = notes_of_node(node)
        assert (row.state, note.kind, note.until_at) == ("FAILED", "NOT_PASSED", None)
        assert note.text == "exit status 3: GPU 3: ECC"

    def test_no_shell_reads_its_words(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> None:
        set_check(*python("import sys; print(sys.argv[1])", "$(id); {node} && true"))
        row = checked(ask("CHECK_NODE", node=node).id)

        assert "$(id); trn001 && true" in row.outcome

    def test_one_that_takes_too_long_is_killed_with_all_it_started(
        self,
        node: int,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
        tmp_path: Path,
    ) -> None:
        text = "import subprocess,sys,time; p=subprocess.Popen(['sleep','600'])"
        text += "; open(sys.argv[1],'w').write(str(p.pid)); time.sleep(600)"
        set_check(*python(text, str(tmp_path / "pid")), timeout_s=1.0)
        row = checked(ask("CHECK_NODE", node=node).id)

        from tests.remediation.conftest import alive

        assert row.state == "FAILED"
        assert "did not end in time" in row.outcome
        assert wait_for(lambda: not alive(int((tmp_path / "pid").read_text())), "the end of what it started")

    def test_of_much_that_it_says_the_end_is_kept(
        self,
        node: int,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
        launches: Path,
    ) -> None:
        set_check(*python("import sys; [print('x' * 1000) for _ in range(20000)]; print('the end'); sys.exit(1)"))
        row = checked(ask("CHECK_NODE", node=node).id)

        kept = sum(path.stat().st_size for path in launches.rglob("*") if path.is_file())
        assert row.outcome.endswith("the end")
        assert len(row.outcome) < 3000
        assert kept < 100_000

    def test_one_that_cannot_be_started_has_no_result(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> None:
        set_check("/no/such/program")
        row = checked(ask("CHECK_NODE", node=node).id)

        assert row.state == "FAILED"
        assert "could not be started" in row.outcome
        assert notes_of_node(node) == []

    def test_it_gets_nothing_of_our_own_environment(
        self,
        node: int,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("DATABASE_PASSWORD", "secret")
        set_check(*python("import os; print(sorted(os.environ))"))
        row = checked(ask("CHECK_NODE", node=node).id)

        assert "PACELINE_NODE" in row.outcome
        assert "DATABASE" not in row.outcome


class TestOnce:
    def test_a_worker_that_dies_over_it_loses_nothing_and_begins_nothing_twice(
        self,
        node: int,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
        tmp_path: Path,
    ) -> None:
        from apps.remediation import launchers

        log = tmp_path / "begun"
        set_check(*python("import sys,time; open(sys.argv[1],'a').write('x'); time.sleep(1.5)", str(log)))
        action = ask("CHECK_NODE", node=node)
        order_id = Order.objects.get(action_id=action.id).pk
        now = datetime.now(UTC)

        first = order_claim(order_id=order_id, now=now)
        assert first is not None
        launchers.order_carry_out(first)  # and its worker is gone before it could say so
        order_doubt(order_id=order_id, now=now + timedelta(seconds=61))
        Order.objects.filter(pk=order_id).update(not_before=now)
        row = checked(action.id)

        assert row.state == "SUCCEEDED"
        assert log.read_text() == "x"
        assert len(notes_of_node(node)) == 1

    def test_what_is_set_meanwhile_changes_nothing_for_one_that_runs(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
        tmp_path: Path,
    ) -> None:
        from apps.remediation import tasks

        go_on = tmp_path / "go_on"
        wait = "import os,sys,time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
        set_check(*python(wait, str(go_on)))
        action = ask("CHECK_NODE", node=node)
        tasks.check_run(order_id=Order.objects.get(action_id=action.id).pk)
        set_check(kind="WEBHOOK", url=receiver.url, secret="s3cret")
        go_on.touch()

        assert checked(action.id).state == "SUCCEEDED"
        assert receiver.told == []

    def test_two_workers_with_one_check_begin_it_once(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        set_check(*python("pass"))
        order_id = Order.objects.get(action_id=ask("CHECK_NODE", node=node).id).pk

        claims = [order_claim(order_id=order_id, now=datetime.now(UTC)) for _ in range(2)]

        assert [claim is not None for claim in claims] == [True, False]

    def test_one_whose_program_was_killed_with_its_keeper_counts_as_none(
        self,
        node: int,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
        launches: Path,
    ) -> None:
        from apps.remediation import tasks

        set_check(*python("import time; time.sleep(600)"))
        action = ask("CHECK_NODE", node=node)
        tasks.check_run(order_id=Order.objects.get(action_id=action.id).pk)
        (started,) = launches.glob("*/started.json")
        known = json.loads(started.read_text())
        os.kill(known["pid"], signal.SIGKILL)
        os.kill(known["program_pid"], signal.SIGKILL)
        row = checked(action.id)

        assert row.state == "FAILED"
        assert "killed before it had a result" in row.outcome
        assert notes_of_node(node) == []

    def test_a_cancelled_one_is_never_begun(
        self, node: int, who: Any, set_check: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        from apps.remediation.services import action_cancel

        set_check(*python("pass"))
        action = ask("CHECK_NODE", node=node)
        order_id = Order.objects.get(action_id=action.id).pk
        action_cancel(principal=who, action_id=action.id, reason="", now=datetime.now(UTC))

        assert order_claim(order_id=order_id, now=datetime.now(UTC)) is None
        assert Order.objects.get(pk=order_id).state == "CANCELLED"


class TestWhere:
    def test_not_where_a_run_computes_even_if_the_node_is_out(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], now: datetime
    ) -> None:
        set_check(*python("pass"))
        exclusion_open(node_id=node, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=now)
        NodeStatus.objects.filter(pk=node).update(open_runs=[1])

        row = ask("CHECK_NODE", node=node)

        assert row.state == "REFUSED"
        assert "would disturb it" in row.outcome

    @pytest.mark.parametrize("state", ["ALLOCATED", "MIXED+DRAIN", "completing"])
    def test_not_where_the_scheduler_has_work(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], state: str
    ) -> None:
        set_check(*python("pass"))
        NodeStatus.objects.filter(pk=node).update(scheduler_state=state)

        assert ask("CHECK_NODE", node=node).state == "REFUSED"

    def test_is_looked_at_again_right_before_it_begins(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> None:
        set_check(*python("pass"))
        action = ask("CHECK_NODE", node=node)
        NodeStatus.objects.filter(pk=node).update(open_runs=[1])

        row = checked(action.id)

        assert row.state == "REFUSED"
        assert "Nothing was done." in row.outcome

    def test_without_a_setting_the_way_by_hand_is_shown(self, node: int, ask: Callable[..., Any]) -> None:
        row = ask("CHECK_NODE", node=node)

        assert row.state == "REFUSED"
        assert "No check is set for north" in row.outcome

    def test_a_name_that_a_program_would_take_for_an_option_is_not_given_to_it(
        self, cluster: int, set_check: Callable[..., Any], ask: Callable[..., Any], now: datetime
    ) -> None:
        set_check("/usr/bin/ssh", "{node}", "true")
        odd = nodes_ensure(cluster_id=cluster, names=["-oProxyCommand=touch"], now=now)["-oProxyCommand=touch"]

        row = ask("CHECK_NODE", node=odd)

        assert row.state == "REFUSED"
        assert "option" in row.outcome

    def test_holds_the_node_and_no_run(
        self, node: int, run: Any, set_check: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        set_check(*python("pass"))

        assert ask("CHECK_NODE", run, node=node).run is None


class TestReadmission:
    @pytest.fixture
    def out(self, node: int, set_check: Callable[..., Any], now: datetime) -> int:
        set_check(*python("pass"), required=True)
        self.put_out(node)
        return node

    def put_out(self, node: int) -> None:
        now = datetime.now(UTC)
        exclusion_open(node_id=node, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=now)

    def noted(self, node: int, kind: str, *, hours: float = 1.0) -> None:
        now = datetime.now(UTC)
        until = now + timedelta(hours=hours) if kind == "PASSED" else None
        ledger_note(node_id=node, kind=kind, text="x", by_name="mia", source="WEB", now=now, until_at=until)

    def test_asks_for_a_check_where_that_is_set(self, out: int, ask: Callable[..., Any]) -> None:
        with pytest.raises(GuardClosed, match="never checked"):
            ask("READMIT_NODE", node=out)

        assert exclusions_of(node_id=out, open_only=True)

    def test_goes_on_after_one_that_passed(
        self, out: int, ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> None:
        assert checked(ask("CHECK_NODE", node=out).id).state == "SUCCEEDED"

        assert ask("READMIT_NODE", node=out).state == "SUCCEEDED"
        assert exclusions_of(node_id=out)[0].notes[0].kind == "PASSED"

    def test_one_that_did_not_pass_later_takes_an_earlier_one_back(self, out: int, ask: Callable[..., Any]) -> None:
        self.noted(out, "PASSED")
        self.noted(out, "NOT_PASSED")

        with pytest.raises(GuardClosed, match="did not pass"):
            ask("READMIT_NODE", node=out)

    def test_one_that_has_expired_counts_no_more(self, out: int, ask: Callable[..., Any]) -> None:
        self.noted(out, "PASSED", hours=-1)

        with pytest.raises(GuardClosed, match="counted until"):
            ask("READMIT_NODE", node=out)

    def test_one_from_before_it_was_put_out_counts_for_nothing(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        set_check(*python("pass"), required=True)
        self.noted(node, "PASSED")
        self.put_out(node)

        with pytest.raises(GuardClosed, match="before it was put out"):
            ask("READMIT_NODE", node=node)

    def test_recording_by_hand_is_no_way_around_it(self, out: int, ask: Callable[..., Any]) -> None:
        with pytest.raises(GuardClosed):
            ask("RECORD_DONE", node=out, options={"done": "READMIT_NODE"})

    def test_a_check_by_hand_is_recorded_with_whether_it_passed(self, out: int, ask: Callable[..., Any]) -> None:
        with pytest.raises(BadRequest, match="passed"):
            ask("RECORD_DONE", node=out, options={"done": "CHECK_NODE"})
        ask("RECORD_DONE", node=out, options={"done": "CHECK_NODE", "passed": True})

        assert ask("READMIT_NODE", node=out).state == "SUCCEEDED"

    def test_asks_for_none_where_none_is_required(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        set_check(*python("pass"), required=False)
        self.put_out(node)

        assert ask("READMIT_NODE", node=node).state == "SUCCEEDED"

    def test_says_so_before_anybody_presses(self, out: int) -> None:
        from apps.fleet.selectors import node_by_id
        from apps.remediation.selectors import action_preview

        preview = action_preview(kind="READMIT_NODE", run=None, node=node_by_id(out), now=datetime.now(UTC))

        assert [(row.name, row.holds) for row in preview.guards] == [("one_open_action", True), ("check", False)]


class Receiver(BaseHTTPRequestHandler):
    """A site's own check: keeps what it was told and answers what the test set."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.append((body, self.headers["Paceline-Signature"]))  # type: ignore[attr-defined]
        self._say(self.server.posted)  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        self._say(self.server.asked)  # type: ignore[attr-defined]

    def _say(self, answer: tuple[int, dict[str, str] | bytes]) -> None:
        content = answer[1] if isinstance(answer[1], bytes) else json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Receiver)
    server.told, server.posted, server.asked = [], (200, {}), (404, {})
    server.url = f"http://127.0.0.1:{server.server_port}/check"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class TestWebhook:
    def hook(self, set_check: Callable[..., Any], receiver: Any, **more: Any) -> None:
        set_check(kind="WEBHOOK", url=receiver.url, secret="s3cret", **more)

    def test_is_told_once_and_asked_until_it_knows(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> None:
        self.hook(set_check, receiver)
        receiver.posted = (202, {"receipt": "r1", "state": "RUNNING"})
        receiver.asked = (200, {"state": "PASSED", "text": "dcgm level 3"})
        row = checked(ask("CHECK_NODE", node=node).id)

        (body, sign) = receiver.told[0]
        assert row.state == "SUCCEEDED"
        assert len(receiver.told) == 1
        assert (body["kind"], body["node"], body["cluster"]) == ("CHECK_NODE", "trn001", "north")
        assert sign.startswith("t=")
        assert notes_of_node(node)[0].text == "dcgm level 3"

    def test_may_know_at_once(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> None:
        self.hook(set_check, receiver)
        receiver.posted = (200, {"state": "NOT_PASSED", "text": "NVLink down"})

        assert "NVLink down" in checked(ask("CHECK_NODE", node=node).id).outcome

    def test_one_that_refuses_leaves_no_result(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> None:
        self.hook(set_check, receiver)
        receiver.posted = (422, {"message": "unknown node"})
        row = checked(ask("CHECK_NODE", node=node).id)

        assert row.state == "FAILED"
        assert "unknown node" in row.outcome
        assert notes_of_node(node) == []

    def test_one_that_answers_what_nobody_can_read_is_settled_by_its_status(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> None:
        self.hook(set_check, receiver)
        receiver.posted = (422, b"[" * 60_000)

        assert checked(ask("CHECK_NODE", node=node).id).state == "FAILED"

    def test_one_whose_word_means_nothing_here_is_told_which_words_do(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> None:
        self.hook(set_check, receiver)
        receiver.posted = (200, {"state": "FAILED"})
        row = checked(ask("CHECK_NODE", node=node).id)

        assert row.state == "FAILED"
        assert "'FAILED', which is none of RUNNING, PASSED, NOT_PASSED" in row.outcome

    def test_after_a_lost_answer_the_receiver_is_asked_before_it_is_told_again(
        self,
        node: int,
        receiver: Any,
        set_check: Callable[..., Any],
        ask: Callable[..., Any],
        checked: Callable[..., Any],
    ) -> None:
        self.hook(set_check, receiver)
        receiver.posted = (500, {})
        receiver.asked = (200, {"state": "PASSED"})

        assert checked(ask("CHECK_NODE", node=node).id).state == "SUCCEEDED"
        assert len(receiver.told) == 1

    def test_one_that_never_knows_is_waited_for_no_longer_than_its_time(
        self, node: int, receiver: Any, set_check: Callable[..., Any], ask: Callable[..., Any]
    ) -> None:
        from apps.remediation import launchers
        from apps.remediation.services import order_settle

        self.hook(set_check, receiver, timeout_s=5.0)
        receiver.posted = receiver.asked = (200, {"state": "RUNNING"})
        action = ask("CHECK_NODE", node=node)
        order_id, now = Order.objects.get(action_id=action.id).pk, datetime.now(UTC)
        for moment in (now, now + timedelta(seconds=70)):
            order = order_claim(order_id=order_id, now=moment)
            assert order is not None
            order_settle(order_id=order_id, claim=order.claim, outcome=launchers.order_carry_out(order), now=moment)

        row = action_by_id(action.id)
        assert row.state == "FAILED"
        assert "no result came in time" in row.outcome


class TestSetting:
    def test_is_an_admins(self, who: Any, cluster: int, now: datetime) -> None:
        with pytest.raises(Forbidden):
            check_set(
                principal=who, cluster_id=cluster, kind="COMMAND", command=["/bin/true"], url="", secret=None,
                timeout_s=60.0, valid_s=3600, required=False, source="API", now=now,
            )  # fmt: skip
        with pytest.raises(Forbidden):
            check_unset(principal=who, cluster_id=cluster, source="API", now=now)

    @pytest.mark.parametrize(
        "more",
        [
            {"command": []},
            {"command": ["dcgmi", "diag"]},
            {"command": ["/bin/a\0b"]},
            {"timeout_s": 0.0},
            {"timeout_s": 1e9},
            {"valid_s": 1},
            {"kind": "WEBHOOK", "url": "ftp://x"},
            {"kind": "SHELL"},
        ],
    )
    def test_refuses_what_makes_no_sense(self, set_check: Callable[..., Any], more: dict[str, Any]) -> None:
        with pytest.raises(BadRequest):
            set_check("/bin/true", **more)

    def test_by_rest_the_secret_is_only_ever_written(self, api: Callable[..., Any], cluster: int) -> None:
        client = api("read", "admin")
        given = {"kind": "WEBHOOK", "url": "https://site.example/check", "secret": "s3cret", "required": True}

        put = client.put("/api/v1/clusters/north/check", given)
        got = client.get("/api/v1/clusters/north/check")

        assert put.status_code == 200
        assert got.json()["required"] is True
        assert "s3cret" not in got.content.decode()
        assert api("read").get("/api/v1/clusters/north/check").status_code == 403
        assert client.delete("/api/v1/clusters/north/check").status_code == 204
        assert client.get("/api/v1/clusters/north/check").status_code == 404


class TestFolders:
    @pytest.fixture
    def folders(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], checked: Callable[..., Any]
    ) -> Callable[[int], list[Path]]:
        """Check a node so often; gives what each check left on disk, the first one first."""

        def make(times: int) -> list[Path]:
            set_check(*python("print('well')"))
            rows = [checked(ask("CHECK_NODE", node=node).id) for _ in range(times)]
            return [Path(settings.DATA_DIR) / "launches" / id_write("ord", row.orders[0].id) for row in rows]

        return make

    def test_go_a_month_after_the_check_was_over(self, folders: Callable[[int], list[Path]], node: int) -> None:
        old, new = folders(2)
        (first, _) = Order.objects.order_by("pk")
        Order.objects.filter(pk=first.pk).update(settled_at=first.settled_at - launchers.KEPT_FOR)

        gone = launchers.launches_trim(now=datetime.now(UTC) + timedelta(seconds=1))

        assert (gone, old.exists(), new.is_dir()) == (1, False, True)
        assert len(notes_of_node(node, kinds=["PASSED"])) == 2

    def test_are_no_more_than_so_many(
        self, folders: Callable[[int], list[Path]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_of_them = folders(3)
        monkeypatch.setattr(launchers, "MOST_CHECKS", 2)

        gone = launchers.launches_trim(now=datetime.now(UTC))

        assert gone == 1
        assert [folder.is_dir() for folder in all_of_them] == [False, True, True]

    def test_of_a_check_that_goes_on_stay(
        self, node: int, set_check: Callable[..., Any], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_check(*python("import time; time.sleep(60)"))
        row = ask("CHECK_NODE", node=node)
        tasks.check_run(order_id=row.orders[0].id)
        folder = Path(settings.DATA_DIR) / "launches" / id_write("ord", row.orders[0].id)
        monkeypatch.setattr(launchers, "MOST_CHECKS", 0)

        unfinished = launchers.launches_trim(now=datetime.now(UTC) + timedelta(days=99))
        Order.objects.update(state="FAILED", settled_at=datetime.now(UTC))
        given_up = launchers.launches_trim(now=datetime.now(UTC) + timedelta(days=99))

        assert (unfinished, given_up) == (0, 0)
        assert (folder / "started.json").exists()
