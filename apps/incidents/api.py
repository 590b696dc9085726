"""REST doors of incidents."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounts.services import once
from apps.common.access import OPERATE, READ
from apps.common.api import Door, RequestFields, choice_read, cursor_int, limit_read, page_answer, read_fields
from apps.common.clock import now
from apps.common.ids import id_write
from apps.diagnosis.answers import finding_answer
from apps.engine.detection import Class
from apps.fleet.selectors import node_by_code
from apps.incidents import services
from apps.incidents.choices import Answer, IncidentState
from apps.incidents.selectors import (
    IncidentRow,
    incident_by_code,
    incident_findings,
    incidents_finding_ids,
    incidents_of,
    timeline_of,
)
from apps.incidents.writeup import incident_answer, markdown_of, timeline_answer
from apps.journal.choices import Source
from apps.runs.selectors import run_by_code


class Incidents(Door):
    """All incidents, newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="incidents_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        run = request.GET.get("run")
        return _listing(self, request, run_id=run_by_code(run).id if run else None)


class RunIncidents(Door):
    """The incidents of a run, newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="runs_incidents", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:
        return _listing(self, request, run_id=run_by_code(code).id)


class OneIncident(Door):
    """One incident."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="incidents_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        return Response(_answer(_incident(self, code)))


class Timeline(Door):
    """An incident's timeline, by time of happening."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="incidents_timeline", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        rows = timeline_of(_incident(self, code), now=now())
        return page_answer([timeline_answer(row, who=self.principal) for row in rows], following=None)


class Export(Door):
    """An incident written up, `?format=markdown` or `json`."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="incidents_export", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response | HttpResponse:
        form = choice_read(request, "format", choices=["markdown", "json"], default="markdown")
        row = _incident(self, code)
        rows, findings = timeline_of(row, now=now()), incident_findings(row.id)
        if form == "json":
            return Response(
                {
                    "incident": _answer(row),
                    "findings": [finding_answer(one) for one in findings],
                    "timeline": [timeline_answer(one, who=self.principal) for one in rows],
                }
            )
        return HttpResponse(markdown_of(row, findings, rows), content_type="text/markdown; charset=utf-8")


class NoteFields(RequestFields):
    """`POST incidents/{id}/notes`."""

    text = serializers.CharField(max_length=20_000)
    happened_at = serializers.DateTimeField(required=False)


class AssignFields(RequestFields):
    """`POST incidents/{id}/assign`."""

    owner = serializers.CharField(max_length=150, allow_blank=True)


class WordsFields(RequestFields):
    """`POST incidents/{id}/acknowledge|mitigate|false_alarm`."""

    reason = serializers.CharField(max_length=4000, required=False, allow_blank=True, default="")


class ResolveFields(RequestFields):
    """`POST incidents/{id}/resolve`."""

    reason = serializers.CharField(max_length=4000, required=False, allow_blank=True, default="")
    cause_was = serializers.ChoiceField(choices=Answer.values, default=Answer.UNKNOWN)


class Work(Door):
    """What people do with an incident; an `Idempotency-Key` makes a repeat give the first answer."""

    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="incidents_work", responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, code: str, what: str) -> Response:
        row = _incident(self, code)
        fields: dict[str, type[RequestFields]] = {"notes": NoteFields, "assign": AssignFields, "resolve": ResolveFields}
        given, ignored = read_fields(fields.get(what, WordsFields), request)
        moment = now()

        def act() -> tuple[int, dict[str, Any]]:
            more = self._act(what)(row, given, moment) or {}
            return (201 if what == "notes" else 200), {
                **_answer(incident_by_code(code, now=moment)),
                **more,
                "ignored": ignored,
            }

        key = request.headers.get("Idempotency-Key")
        if key is None:
            status, answer = act()
        else:
            body = {"what": what, "incident": row.id, "given": request.data}
            status, answer = once(principal=self.principal, key=key, body=body, now=moment, act=act)
        return Response(answer, status)

    def _act(self, what: str) -> Callable[[IncidentRow, dict[str, Any], datetime], dict[str, Any] | None]:
        return {
            "notes": self._note,
            "acknowledge": self._acknowledge,
            "assign": self._assign,
            "mitigate": self._mitigate,
            "resolve": self._resolve,
            "false_alarm": self._false_alarm,
        }[what]

    def _note(self, row: IncidentRow, given: dict[str, Any], moment: datetime) -> dict[str, Any]:
        note_id = services.note_add(
            incident_id=row.id,
            text=given["text"],
            happened_at=given.get("happened_at"),
            author_key=self.principal.key,
            author_name=self.principal.name,
            source=Source.API,
            now=moment,
        )
        return {"note": id_write("note", note_id)}

    def _acknowledge(self, row: IncidentRow, given: dict[str, Any], moment: datetime) -> None:  # noqa: ARG002
        services.incident_acknowledge(incident_id=row.id, by=self.principal.name, source=Source.API, now=moment)

    def _assign(self, row: IncidentRow, given: dict[str, Any], moment: datetime) -> None:
        services.incident_assign(
            incident_id=row.id, owner=given["owner"], by=self.principal.name, source=Source.API, now=moment
        )

    def _mitigate(self, row: IncidentRow, given: dict[str, Any], moment: datetime) -> None:
        services.incident_mitigate(
            incident_id=row.id, reason=given["reason"], by=self.principal.name, source=Source.API, now=moment
        )

    def _resolve(self, row: IncidentRow, given: dict[str, Any], moment: datetime) -> None:
        services.incident_resolve(
            incident_id=row.id,
            answer=given["cause_was"],
            words=given["reason"],
            by=self.principal.name,
            source=Source.API,
            now=moment,
        )

    def _false_alarm(self, row: IncidentRow, given: dict[str, Any], moment: datetime) -> None:
        services.incident_resolve(
            incident_id=row.id,
            answer=Answer.WRONG,
            words=given["reason"],
            by=self.principal.name,
            source=Source.API,
            now=moment,
            false_alarm=True,
        )


def _incident(door: Door, code: str) -> IncidentRow:
    row = incident_by_code(code, now=now())
    door.check_cluster(row.cluster_id)
    return row


def _answer(row: IncidentRow) -> dict[str, Any]:
    return incident_answer(row, findings=incidents_finding_ids([row.id])[row.id])


def _listing(door: Door, request: Request, *, run_id: int | None) -> Response:
    limit = limit_read(request)
    node = request.GET.get("node")
    state = choice_read(request, "state", choices=["", *IncidentState.values], default="")
    rows = incidents_of(
        now=now(),
        run_id=run_id,
        node_id=node_by_code(node, cluster_id=door.principal.cluster_id).id if node else None,
        cluster_id=door.principal.cluster_id,
        states=[state] if state else (),
        class_name=choice_read(request, "class", choices=["", *Class], default="") or None,
        before=cursor_int(request),
        limit=limit + 1,
    )
    following = rows[limit - 1].number if len(rows) > limit else None
    shown = rows[:limit]
    findings = incidents_finding_ids([row.id for row in shown])
    return page_answer([incident_answer(row, findings=findings[row.id]) for row in shown], following=following)
