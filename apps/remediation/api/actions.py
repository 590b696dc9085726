"""REST doors of actions: asking, looking, waiting, deciding."""

import time
from collections.abc import Callable
from typing import Any

from django.db import transaction
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.services import once
from apps.common.access import OPERATE, READ
from apps.common.api import Door, choice_read, cursor_int, int_read, limit_read, page_answer, read_fields
from apps.common.clock import now
from apps.common.errors import Forbidden, NotFound
from apps.common.ids import id_read
from apps.fleet.selectors import NodeRow, node_by_code
from apps.incidents.selectors import incident_by_code
from apps.journal.choices import Source
from apps.remediation.api.answers import action_answer, preview_answer
from apps.remediation.api.fields import AcceptFields, ActionFields, ReasonFields, SettleFields
from apps.remediation.choices import ActionState, Moment
from apps.remediation.selectors import (
    ActionRow,
    action_by_code,
    action_by_id,
    action_preview,
    actions_of,
    restart_preview,
)
from apps.remediation.services import action_accept, action_cancel, action_dismiss, action_request, action_settle
from apps.runs.selectors import RunRow, run_by_code

LONGEST_WAIT_S = 30
POLL_S = 0.1
GOING_ON = (ActionState.REQUESTED, ActionState.RUNNING)
KEY = OpenApiParameter("Idempotency-Key", str, OpenApiParameter.HEADER, required=True)
DRY_RUN = OpenApiParameter("dry_run", bool, description="1: check and answer, keep nothing")


class ActionDoor(Door):
    """What the doors of actions share."""

    def act(self, request: Request, do: Callable[[], tuple[int, dict[str, Any]]]) -> Response:
        """Do something once per Idempotency-Key; with `dry_run=1` do it in a transaction that is taken back."""
        if request.GET.get("dry_run") in ("1", "true"):
            with transaction.atomic():
                status, answer = do()
                transaction.set_rollback(True)
            return Response({**answer, "dry_run": True}, 200)
        key = request.headers.get("Idempotency-Key", "")
        body = [request.path, request.data]
        status, answer = once(principal=self.principal, key=key, body=body, now=now(), act=do)
        return Response(answer, status)

    def visible(self, action: ActionRow) -> ActionRow:
        """Return an action if the caller may know of it."""
        if self.principal.cluster_id not in (None, action.cluster_id):
            raise NotFound("There is no such action.")
        return action


class Actions(ActionDoor):
    """All actions, newest first; asking for one."""

    scopes = {"GET": READ, "POST": OPERATE}

    @extend_schema(operation_id="actions_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        limit = limit_read(request)
        run, node = request.GET.get("run"), request.GET.get("node")
        state = choice_read(request, "state", choices=["", *ActionState.values], default="")
        bound = self.principal.cluster_id
        rows = actions_of(
            run_id=run_by_code(run).id if run else None,
            node_id=node_by_code(node, cluster_id=bound).id if node else None,
            cluster_id=bound,
            states=[state] if state else (),
            before=cursor_int(request),
            limit=limit + 1,
        )
        following = rows[limit - 1].id if len(rows) > limit else None
        return page_answer([action_answer(row, who=self.principal) for row in rows[:limit]], following=following)

    @extend_schema(
        operation_id="actions_request", request=ActionFields, parameters=[KEY, DRY_RUN], responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request) -> Response:
        given, ignored = read_fields(ActionFields, request)
        run, node = self._about(given)

        def do() -> tuple[int, dict[str, Any]]:
            moment = now()
            action = action_request(
                principal=self.principal,
                kind=given["kind"],
                run_id=run.id if run else None,
                node_id=node.id if node else None,
                reason=given["reason"],
                expected_state=expected_read(given.get("expected_state")),
                options=given.get("options"),
                expires_at=given.get("expires_at"),
                incident_id=_incident(given.get("incident"), now=moment),
                source=Source.API,
                now=moment,
            )
            return 201, {**action_answer(action, who=self.principal), "ignored": ignored}

        if request.GET.get("dry_run") not in ("1", "true"):
            return self.act(request, do)
        preview = self._preview(given, run, node)  # before anything is tried: it shows the guards as they stand
        answer = self.act(request, do)
        answer.data["preview"] = preview
        return answer

    def _about(self, given: dict[str, Any]) -> tuple[RunRow | None, NodeRow | None]:
        run = run_by_code(given["run"]) if given.get("run") else None
        bound = self.principal.cluster_id
        if run is not None and bound not in (None, run.cluster_id):
            raise Forbidden("This token belongs to another cluster.")
        cluster_id = run.cluster_id if run is not None else bound
        node = node_by_code(given["node"], cluster_id=cluster_id) if given.get("node") else None
        return run, node

    def _preview(self, given: dict[str, Any], run: RunRow | None, node: NodeRow | None) -> dict[str, Any] | None:
        if run is None and node is None:
            return None
        options = given.get("options") or {}
        preview = action_preview(
            kind=given["kind"],
            run=run,
            node=node,
            exclude_nodes=options.get("exclude_nodes") or (),
            from_step=options.get("from_step"),
            reason=given["reason"],
            moment=options.get("when") or Moment.NOW,
            requeued=options.get("requeued") or "",
            now=now(),
        )
        return preview_answer(preview, with_commands=True)


class OneAction(ActionDoor):
    """One action; `wait` holds the answer back until it is over, uncertain, or that many seconds have passed."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="actions_read",
        parameters=[OpenApiParameter("wait", int, description=f"seconds, at most {LONGEST_WAIT_S}")],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, action: str) -> Response:
        wait_s = int_read(request, "wait", default=0, least=0, most=10**6)
        deadline = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        row = self.visible(action_by_code(action))
        while row.state in GOING_ON and time.monotonic() < deadline:
            time.sleep(POLL_S)
            row = action_by_id(row.id)
        return Response(action_answer(row, who=self.principal))


class Accept(ActionDoor):
    """Taking up a proposal."""

    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="actions_accept", request=AcceptFields, parameters=[KEY, DRY_RUN], responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request, action: str) -> Response:
        given, ignored = read_fields(AcceptFields, request)
        row = self.visible(action_by_code(action))

        def do() -> tuple[int, dict[str, Any]]:
            accepted = action_accept(
                principal=self.principal,
                action_id=row.id,
                reason=given["reason"],
                expected_state=expected_read(given.get("expected_state")),
                options=given.get("options"),
                source=Source.API,
                now=now(),
            )
            return 200, {**action_answer(accepted, who=self.principal), "ignored": ignored}

        return self.act(request, do)


class Dismiss(ActionDoor):
    """Turning a proposal down: the same is not proposed again for what was found until now."""

    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="actions_dismiss", request=ReasonFields, parameters=[KEY, DRY_RUN], responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request, action: str) -> Response:
        given, ignored = read_fields(ReasonFields, request)
        row = self.visible(action_by_code(action))

        def do() -> tuple[int, dict[str, Any]]:
            done = action_dismiss(principal=self.principal, action_id=row.id, reason=given["reason"], now=now())
            return 200, {**action_answer(done, who=self.principal), "ignored": ignored}

        return self.act(request, do)


class Cancel(ActionDoor):
    """Cancelling what has not begun."""

    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="actions_cancel", request=ReasonFields, parameters=[KEY, DRY_RUN], responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request, action: str) -> Response:
        given, ignored = read_fields(ReasonFields, request)
        row = self.visible(action_by_code(action))

        def do() -> tuple[int, dict[str, Any]]:
            done = action_cancel(principal=self.principal, action_id=row.id, reason=given["reason"], now=now())
            return 200, {**action_answer(done, who=self.principal), "ignored": ignored}

        return self.act(request, do)


class Settle(ActionDoor):
    """Saying what one saw where nobody knows."""

    scopes = {"POST": OPERATE}

    @extend_schema(
        operation_id="actions_settle", request=SettleFields, parameters=[KEY, DRY_RUN], responses=OpenApiTypes.OBJECT
    )
    def post(self, request: Request, action: str) -> Response:
        given, ignored = read_fields(SettleFields, request)
        row = self.visible(action_by_code(action))

        def do() -> tuple[int, dict[str, Any]]:
            done = action_settle(
                principal=self.principal,
                action_id=row.id,
                outcome=given["outcome"],
                reason=given["reason"],
                now=now(),
            )
            return 200, {**action_answer(done, who=self.principal), "ignored": ignored}

        return self.act(request, do)


class RestartPreview(ActionDoor):
    """What a restart would do, cost and need."""

    scopes = {"GET": READ}

    @extend_schema(
        operation_id="runs_restart_preview",
        parameters=[
            OpenApiParameter("exclude_nodes", str, description="names, separated by commas"),
            OpenApiParameter("from_step", int),
        ],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, code: str) -> Response:
        run = run_by_code(code)
        if self.principal.cluster_id not in (None, run.cluster_id):
            raise Forbidden("This token belongs to another cluster.")
        names = [name.strip() for name in request.GET.get("exclude_nodes", "").split(",") if name.strip()]
        step = int_read(request, "from_step", default=-1, least=-1, most=2**53)
        preview = restart_preview(run.id, exclude_nodes=names, from_step=None if step < 0 else step, now=now())
        return Response(preview_answer(preview, with_commands=self.principal.may(OPERATE)))


def expected_read(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what the caller saw, with the attempt as its row.

    Raises:
        NotFound: that is not the id of an attempt.
    """
    if not given:
        return None
    seen: dict[str, Any] = {}
    if "attempt" in given:
        code = given["attempt"]
        seen["attempt"] = id_read("att", code) if code else None
    if given.get("state"):
        seen["state"] = given["state"]
    if "from_step" in given:
        seen["from_step"] = given["from_step"]
    return seen


def _incident(code: str | None, *, now: Any) -> int | None:
    return incident_by_code(code, now=now).id if code else None
