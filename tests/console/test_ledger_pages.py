"""The ledger's page, decisions with one click, names placed, checks set: what an operator sees and presses."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from apps.engine.readers.slurm import SlurmNode
from apps.fleet.models import Exclusion, NodeStatus
from apps.fleet.selectors import exclusions_of, node_by_id, notes_of_node
from apps.fleet.services import exclusion_open, nodes_ensure
from apps.remediation.models import NodeDrain, SchedulerSetting
from apps.remediation.selectors import actions_of, check_of
from apps.remediation.selectors.jobs import drifts_open
from apps.remediation.services import nodes_seen

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(cluster: int, now: datetime) -> int:
    return nodes_ensure(cluster_id=cluster, names=["trn001"], now=now)["trn001"]


@pytest.fixture
def page(operator: Any, client_as: Callable[[Any], Client]) -> Client:
    return client_as(operator)


def shown(client: Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode().replace("\xa0", " ")


@pytest.fixture
def differing(node: int, cluster: int, now: datetime) -> int:
    """We drained trn001, and somebody resumed it."""
    moment = datetime.now(UTC)
    SchedulerSetting.objects.create(cluster_id=cluster, updated_by="boss", updated_at=now, next_read_at=now)
    line = exclusion_open(node_id=node, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=moment)
    NodeDrain.objects.create(exclusion_id=line, node_id=node, mark="m", drained_at=moment)
    nodes_seen(cluster_id=cluster, nodes=[SlurmNode("trn001", "IDLE")], at=moment, now=moment)
    return node


class TestDifferences:
    def test_are_decided_with_one_click_each(self, differing: int, page: Client, cluster: int) -> None:
        text = shown(page, "/nodes?cluster=north")
        (path,) = re.findall(r'action="(/ledger/differences/\d+)"', text)
        key = re.findall(r'name="key" value="([^"]+)"', text)[0]
        assert "We drained it, the scheduler says in service" in text
        assert "Drain again" in text

        answers = [page.post(path, {"decision": "END", "key": key, "hours": "24"}) for _ in range(2)]

        assert [answer.status_code for answer in answers] == [302, 302]
        assert len({answer["Location"] for answer in answers}) == 1
        assert len(actions_of()) == 1
        assert exclusions_of(node_id=differing)[0].ended_by_name == "operator"
        assert drifts_open(cluster_id=cluster) == []

    def test_one_that_is_kept_says_by_whom_and_until_when(self, differing: int, page: Client, cluster: int) -> None:
        (row,) = drifts_open(cluster_id=cluster)
        page.post(f"/ledger/differences/{row.id}", {"decision": "KEEP", "key": "k", "hours": "8"})

        assert "kept as is by operator until" in shown(page, "/nodes?cluster=north")
        (row,) = drifts_open(cluster_id=cluster)
        assert row.kept_until_at is not None
        assert timedelta(hours=7) < row.kept_until_at - datetime.now(UTC) <= timedelta(hours=8)

    def test_a_viewer_sees_them_and_decides_nothing(
        self, differing: int, viewer: Any, client_as: Callable[[Any], Client], cluster: int
    ) -> None:
        client = client_as(viewer)
        (row,) = drifts_open(cluster_id=cluster)

        assert "an operator decides" in shown(client, "/nodes?cluster=north")
        assert client.post(f"/ledger/differences/{row.id}", {"decision": "END", "key": "k"}).status_code == 403

    def test_one_that_is_over_says_so(self, page: Client) -> None:
        for number in (999, 10**22):
            assert page.post(f"/ledger/differences/{number}", {"decision": "END", "key": "k"}).status_code == 404


class TestSchedulersWord:
    def test_stands_beside_a_line_with_the_difference_that_is_listed(self, differing: int, page: Client) -> None:
        for path in ("/nodes/north/trn001", "/ledger?cluster=north"):
            text = shown(page, path)

            assert "we drained it, the scheduler says in service" in text
            assert "Look at the difference" in text

    def test_is_no_difference_where_paceline_drains_nothing(
        self, node: int, page: Client, cluster: int, now: datetime
    ) -> None:
        exclusion_open(node_id=node, reason="ECC errors", by_name="mia", origin="OURS", source="WEB", now=now)
        nodes_seen(cluster_id=cluster, nodes=[SlurmNode("trn001", "IDLE")], at=now, now=now)

        text = shown(page, "/nodes/north/trn001")

        assert '<span class="st ok">IDLE</span>' in text
        assert "Look at the difference" not in text


class TestNames:
    def test_a_name_is_placed_with_one_click(self, page: Client, cluster: int, now: datetime) -> None:
        ids = [
            nodes_ensure(cluster_id=cluster, names=[name], now=now)[name]
            for name in ("gpu1.north.example", "gpu1.south.example", "gpu1")
        ]
        text = shown(page, "/nodes?cluster=north")
        assert "It is gpu1.north.example" in text

        page.post(f"/ledger/names/{ids[2]}", {"act": "is", "of": "gpu1.north.example"})

        assert node_by_id(ids[2]).merged_into == ids[0]
        assert "It is gpu1" not in shown(page, "/nodes?cluster=north")

    def test_or_called_a_machine_of_its_own(self, page: Client, node: int, cluster: int, now: datetime) -> None:
        NodeStatus.objects.filter(pk=node).update(scheduler_state="IDLE")
        login = nodes_ensure(cluster_id=cluster, names=["login-1"], now=now)["login-1"]
        assert "The scheduler does not know this name" in shown(page, "/nodes?cluster=north")

        page.post(f"/ledger/names/{login}", {"act": "apart"})

        assert "Names in doubt" not in shown(page, "/nodes?cluster=north")

    def test_stand_on_the_nodes_own_page_and_are_taken_away_there(self, page: Client, node: int) -> None:
        page.post(f"/ledger/names/{node}", {"act": "add", "name": "exporter-7"})
        assert "Not its name" in shown(page, "/nodes/north/trn001")

        page.post(f"/ledger/names/{node}", {"act": "remove", "name": "exporter-7"})

        assert node_by_id(node).aliases == ()


class TestLedgerPage:
    @pytest.fixture
    def long(self, cluster: int, now: datetime) -> int:
        ids = list(nodes_ensure(cluster_id=cluster, names=[f"n{i:03d}" for i in range(200)], now=now).values())
        Exclusion.objects.bulk_create(
            [
                Exclusion(
                    node_id=ids[i % 200], origin="OURS" if i % 2 else "OBSERVED", reason=f"reason {i}", by_name="mia",
                    began_at=now + timedelta(minutes=i),
                    ended_at=None if i >= 9_980 else now + timedelta(minutes=i + 50),
                )
                for i in range(10_000)
            ],
            batch_size=2000,
        )  # fmt: skip
        return cluster

    def test_shows_a_page_of_ten_thousand_lines_with_few_queries(
        self, long: int, page: Client, django_assert_max_num_queries: Any
    ) -> None:
        with django_assert_max_num_queries(40):
            text = shown(page, "/ledger?cluster=north")

        assert "10,000 lines" in text
        assert text.count('<tr id="exc_') == 100
        (older,) = re.findall(r'href="\?([^"]+)">Older lines', text)
        assert "reason 9899" in shown(page, "/ledger?" + older.replace("&amp;", "&"))

    def test_narrows_down_and_exports_what_is_shown(self, long: int, page: Client) -> None:
        text = shown(page, "/ledger?cluster=north&state=OPEN&origin=OURS")
        export = page.get("/ledger/export?cluster=north&state=OPEN&origin=OURS&format=csv")

        assert text.count('<tr id="exc_') == 10
        assert "format=csv" in text
        assert len(b"".join(export).splitlines()) == 11
        assert page.get("/ledger/export?format=xml").status_code == 400

    def test_the_nodes_page_stays_short_and_leads_there(self, long: int, page: Client) -> None:
        text = shown(page, "/nodes?cluster=north")

        assert text.count('<tr id="exc_') == 20 + 12
        assert "append-only; 10,000 exclusions, 20 open" in text
        assert 'href="/ledger?cluster=north"' in text

    def test_says_which_stay_it_is_and_what_was_said_later(self, node: int, page: Client, now: datetime) -> None:
        from apps.fleet.services import exclusion_end, ledger_note

        moment = datetime.now(UTC)
        given: dict[str, Any] = {"node_id": node, "by_name": "mia", "source": "WEB"}
        exclusion_open(reason="Xid 48", origin="OURS", now=moment, **given)
        exclusion_end(reason="reset", now=moment, **given)
        exclusion_open(reason="Xid 48 again", origin="OURS", now=moment, **given)
        ledger_note(kind="NOT_PASSED", text="dcgm: GPU 2", now=moment, **given)

        text = shown(page, "/ledger")

        assert "stay 2" in text
        assert "check not passed" in text
        assert "dcgm: GPU 2" in text


class TestForms:
    def test_an_exclusion_is_made_until_a_time(self, node: int, page: Client) -> None:
        path = "/nodes/north/trn001/actions/new"
        assert "Out until" in shown(page, f"{path}?kind=EXCLUDE_NODE")
        form = {
            "kind": "EXCLUDE_NODE", "reason": "Throttles on heat since 01:56", "key": "k", "when": "NOW",
            "out_hours": "24", "at_until": "ASK",
        }  # fmt: skip
        for _ in range(2):
            assert page.post(path, form).status_code == 302

        (line,) = exclusions_of(node_id=node)
        assert line.out_until_at is not None
        assert timedelta(hours=23) < line.out_until_at - datetime.now(UTC) <= timedelta(hours=24)
        assert line.at_until == "ASK"

    def test_is_kept_out_longer_from_the_nodes_page(self, node: int, page: Client) -> None:
        exclusion_open(node_id=node, reason="ECC", by_name="mia", origin="OURS", source="WEB", now=datetime.now(UTC))
        assert "Keep it out" in shown(page, "/nodes/north/trn001")

        page.post(f"/ledger/keep/{node}", {"reason": "the spare part is late", "hours": "24", "key": "k"})

        assert "kept out longer, until" in shown(page, "/nodes/north/trn001")

    @pytest.mark.parametrize("hours", ["-5", "nan", "0", "9" * 30, "1.5"])
    def test_hours_that_cannot_be_read_never_mean_for_ever(self, node: int, page: Client, hours: str) -> None:
        exclusion_open(node_id=node, reason="ECC", by_name="mia", origin="OURS", source="WEB", now=datetime.now(UTC))

        kept = page.post(f"/ledger/keep/{node}", {"reason": "late", "hours": hours, "key": "k"})
        asked = page.post(
            "/nodes/north/trn001/actions/new",
            {"kind": "EXCLUDE_NODE", "reason": "a bad fan", "out_hours": hours, "key": "k2"},
        )

        assert (kept.status_code, asked.status_code) == (400, 400)
        assert "empty for no end" in kept.text
        assert "empty for no end" in asked.text
        assert "kept out longer" not in shown(page, "/nodes/north/trn001")

    def test_where_no_check_is_set_one_by_hand_is_recorded_with_its_result(self, node: int, page: Client) -> None:
        path = "/nodes/north/trn001/actions/new"
        text = shown(page, f"{path}?kind=CHECK_NODE")
        assert "It did not pass" in text
        assert "State=DRAIN" not in text

        page.post(path, {"kind": "CHECK_NODE", "reason": "ran dcgmi by hand", "key": "k", "done": "not_passed"})

        assert [note.kind for note in notes_of_node(node)] == ["NOT_PASSED"]

    def test_taking_back_is_off_with_the_reason_where_a_check_is_asked_for(
        self, node: int, page: Client, admin: Any, client_as: Callable[[Any], Client], cluster: int
    ) -> None:
        form = {
            "act": "check", "cluster": cluster, "kind": "COMMAND", "command": "/usr/bin/env\r\n{node}\r\n",
            "timeout_s": "60", "valid_h": "24", "required": "1",
        }  # fmt: skip
        assert page.post("/settings", form).status_code == 403
        assert client_as(admin).post("/settings", form).status_code == 302
        how = check_of(cluster)
        assert how is not None
        assert how.command == ("/usr/bin/env", "{node}")
        exclusion_open(node_id=node, reason="ECC", by_name="mia", origin="OURS", source="WEB", now=datetime.now(UTC))

        text = shown(page, "/nodes/north/trn001")

        assert "off: a passed check is asked for; it was never checked" in text
        assert "kind=CHECK_NODE" in text
        assert "a passed check" in shown(page, "/nodes/north/trn001/actions/new?kind=READMIT_NODE")

    def test_putting_out_a_node_alone_is_off_with_the_reason_where_as_many_are_out_as_may_be(
        self, node: int, page: Client, admin: Any, client_as: Callable[[Any], Client], cluster: int, now: datetime
    ) -> None:
        from apps.accounts.selectors import principal_of_user
        from apps.remediation.services import guard_set

        limits: dict[str, Any] = {"window_s": 86_400, "share_of_run": 0.1, "source": "WEB", "now": now}
        before = shown(page, "/nodes/north/trn001")
        guard_set(principal=principal_of_user(admin), cluster_id=cluster, exclusions_per_window=0, **limits)

        after = shown(page, "/nodes/north/trn001")

        assert "costs nothing: nothing runs here" in before
        assert "costs nothing: nothing runs here" not in after
        assert "off: 0 of 0 exclusions allowed in 24 h are used; this would make it 1" in after

    def test_the_settings_show_no_secret(self, admin: Any, client_as: Callable[[Any], Client], cluster: int) -> None:
        client = client_as(admin)
        form = {
            "act": "check", "cluster": cluster, "kind": "WEBHOOK", "url": "https://site.example/check",
            "secret": "s3cret-word", "timeout_s": "60", "valid_h": "24",
        }  # fmt: skip
        client.post("/settings", form)
        client.post("/settings", {**form, "secret": "", "timeout_s": "90"})

        how = check_of(cluster)
        assert how is not None
        assert (how.secret, how.timeout_s) == ("s3cret-word", 90.0)
        assert "s3cret-word" not in shown(client, "/settings")
