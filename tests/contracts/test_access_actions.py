"""Every kind of action at every door: who may ask for it and decide about it, and that nothing happens where not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from apps.common.ids import id_write
from apps.fleet.models import Exclusion
from apps.fleet.services import cluster_ensure
from apps.remediation.choices import ActionKind
from apps.remediation.models import Action
from apps.remediation.services import action_request
from apps.runs.selectors import run_by_id

REASON = "Throttles on heat since 01:56, all GPUs"
KINDS = list(ActionKind.values)
OF_NODES = (ActionKind.EXCLUDE_NODE, ActionKind.READMIT_NODE, ActionKind.CHECK_NODE)
DECISIONS = ("accept", "dismiss", "cancel", "settle")
CSRF = "django.contrib.auth.backends.ModelBackend"


@pytest.fixture
def hooked(make_run: Callable[..., Any], make_attempt: Callable[..., Any]) -> Any:
    """A run with a launcher and an open attempt on trn001 and trn002."""
    run = make_run("dense-7b", launcher={"kind": "WEBHOOK", "url": "http://127.0.0.1:9/orders"})
    make_attempt(run)
    return run_by_id(run.id)


@pytest.fixture
def waiting(hooked: Any, operator: Any) -> str:
    """An action that an operator asked for and that has not begun."""
    from apps.accounts.selectors import principal_of_user

    who = principal_of_user(operator)
    row = action_request(
        principal=who,
        kind="RESTART_RUN",
        run_id=hooked.id,
        node_id=None,
        reason=REASON,
        source="API",
        now=datetime.now(UTC),
    )
    return id_write("act", row.id)


def wish(kind: str) -> dict[str, Any]:
    about = {"node": "trn001"} if kind in OF_NODES else {"run": "dense-7b"}
    options = {"done": "STOP_RUN", "command": "scancel 7"} if kind == ActionKind.RECORD_DONE else {}
    return {"kind": kind, "reason": REASON, "options": options, **about}


def ask(caller: Client, kind: str) -> Any:
    return caller.post("/api/v1/actions", wish(kind), "application/json", headers={"Idempotency-Key": f"k-{kind}"})


def form_address(kind: str) -> str:
    place = "/nodes/north/trn001" if kind in OF_NODES else "/runs/dense-7b"
    return f"{place}/actions/new"


def form(kind: str) -> dict[str, str]:
    """What a page sends; that something was done by hand is told with the form of what was done."""
    by_hand = {"kind": "STOP_RUN", "done": "1", "command": "scancel 7"} if kind == ActionKind.RECORD_DONE else {}
    return {"kind": kind, "reason": REASON, "key": "k", **by_hand}


def nothing_happened() -> bool:
    return not Action.objects.exists() and not Exclusion.objects.exists()


@pytest.mark.django_db
class TestAsking:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("scopes", [("read",), ("report",), ("admin",), ("read", "report", "admin")])
    def test_no_token_without_the_right_to_operate(
        self, hooked: Any, api: Callable[..., Client], kind: str, scopes: tuple[str, ...]
    ) -> None:
        answer = ask(api(*scopes), kind)

        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert nothing_happened()

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_token_of_another_cluster(
        self, hooked: Any, api: Callable[..., Client], kind: str, now: datetime
    ) -> None:
        south = cluster_ensure(name="south", now=now)

        answer = ask(api("read", "operate", cluster_id=south), kind)

        assert answer.status_code in (403, 404)
        assert nothing_happened()

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_viewer_by_rest_or_by_form(
        self, hooked: Any, client_as: Callable[..., Client], viewer: Any, kind: str
    ) -> None:
        browser = client_as(viewer)

        by_rest = ask(browser, kind)
        by_form = browser.post(form_address(kind), form(kind))

        assert by_rest.status_code == 403
        assert by_form.status_code == 403
        assert nothing_happened()

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_form_of_another_site(self, hooked: Any, admin: Any, kind: str) -> None:
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(admin, backend=CSRF)

        answer = browser.post(form_address(kind), form(kind))

        assert answer.status_code == 403
        assert nothing_happened()

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("role", ["operator", "admin"])
    def test_whoever_may_operate_is_never_told_that_he_may_not(
        self, hooked: Any, client_as: Callable[..., Client], request: pytest.FixtureRequest, kind: str, role: str
    ) -> None:
        answer = ask(client_as(request.getfixturevalue(role)), kind)

        assert answer.status_code in (201, 409, 422), answer.content[:300]


@pytest.mark.django_db
class TestDeciding:
    @pytest.mark.parametrize("door", DECISIONS)
    @pytest.mark.parametrize("scopes", [("read",), ("report",), ("admin",)])
    def test_no_token_without_the_right_to_operate(
        self, waiting: str, api: Callable[..., Client], door: str, scopes: tuple[str, ...]
    ) -> None:
        body = {"reason": REASON, "outcome": "FAILED"}

        answer = api(*scopes).post(f"/api/v1/actions/{waiting}/{door}", body, headers={"Idempotency-Key": "d"})

        assert answer.status_code == 403
        assert Action.objects.get().state == "REQUESTED"

    @pytest.mark.parametrize("door", DECISIONS)
    def test_no_token_of_another_cluster(
        self, waiting: str, api: Callable[..., Client], door: str, now: datetime
    ) -> None:
        other = api("read", "operate", cluster_id=cluster_ensure(name="south", now=now))
        body = {"reason": REASON, "outcome": "FAILED"}

        answer = other.post(f"/api/v1/actions/{waiting}/{door}", body, headers={"Idempotency-Key": "d"})

        assert answer.status_code == 404
        assert Action.objects.get().state == "REQUESTED"

    @pytest.mark.parametrize("door", DECISIONS)
    def test_no_viewer_and_no_form_of_another_site(
        self, waiting: str, client_as: Callable[..., Client], viewer: Any, admin: Any, door: str
    ) -> None:
        elsewhere = Client(enforce_csrf_checks=True)
        elsewhere.force_login(admin, backend=CSRF)
        pressed = {"act": door, "reason": REASON, "outcome": "FAILED"}

        answers = [caller.post(f"/actions/{waiting}/decide", pressed) for caller in (client_as(viewer), elsewhere)]

        assert [answer.status_code for answer in answers] == [403, 403]
        assert Action.objects.get().state == "REQUESTED"


@pytest.mark.django_db
class TestConfiguring:
    """What is executed is set by those who administer, and by nobody else."""

    LAUNCHER = {"launcher": {"kind": "LOCAL", "command": ["/bin/true"]}}

    @pytest.mark.parametrize("scopes", [("report",), ("report", "read", "operate")])
    def test_no_token_below_admin_sets_what_is_executed(
        self, run: Any, api: Callable[..., Client], scopes: tuple[str, ...]
    ) -> None:
        answer = api(*scopes).put("/api/v1/runs/dense-7b", self.LAUNCHER)

        assert answer.status_code == 403
        assert "launcher" in answer.text
        assert run_by_id(run.id).launcher == {}

    @pytest.mark.parametrize("field", [{"mode": "ACT"}, {"modes": {"hang": "ACT"}}, {"limits": {"hang_floor_s": 1}}])
    def test_no_report_token_sets_how_a_run_is_acted_upon(
        self, run: Any, api: Callable[..., Client], field: dict[str, Any]
    ) -> None:
        answer = api("report").put("/api/v1/runs/dense-7b", field)

        assert answer.status_code == 403
        assert next(iter(field)) in answer.text

    @pytest.mark.parametrize("method", ["put", "delete"])
    def test_no_operator_sets_a_cluster_s_scheduler(
        self, cluster: int, client_as: Callable[..., Client], api: Callable[..., Client], operator: Any, method: str
    ) -> None:
        callers = (client_as(operator), api("read", "report", "operate"))

        answers = [
            getattr(caller, method)("/api/v1/clusters/north/scheduler", {"conf": "/x"}, "application/json")
            for caller in callers
        ]

        assert [answer.status_code for answer in answers] == [403, 403]

    @pytest.mark.parametrize("act", ["token", "revoke", "person", "role", "guard", "scheduler"])
    def test_no_operator_changes_settings_by_form(
        self, client_as: Callable[..., Client], operator: Any, viewer: Any, act: str
    ) -> None:
        answers = [client_as(user).post("/settings", {"act": act}) for user in (operator, viewer)]

        assert [answer.status_code for answer in answers] == [403, 403]
