"""REST doors of findings and detectors."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import OPERATE, READ
from apps.common.api import Door, RequestFields, choice_read, cursor_int, limit_read, page_answer, read_fields
from apps.common.clock import now, rfc3339
from apps.common.errors import BadRequest
from apps.common.ids import id_read
from apps.diagnosis.answers import finding_answer
from apps.diagnosis.choices import AnswerKind, FindingState
from apps.diagnosis.selectors import DetectorRow, FindingRow, detectors_of, finding_by_id, findings_of
from apps.diagnosis.services import finding_mute
from apps.engine.detection import Class
from apps.engine.detectors import registry
from apps.fleet.selectors import node_by_code
from apps.journal.choices import Source
from apps.runs.selectors import attempt_by_code, run_by_code, run_by_id


class Findings(Door):
    """All findings, newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="findings_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        run = request.GET.get("run")
        return _listing(self, request, run_id=run_by_code(run).id if run else None)


class RunFindings(Door):
    """The findings of a run, newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="runs_findings", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:
        return _listing(self, request, run_id=run_by_code(code).id)


class OneFinding(Door):
    """One finding."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="findings_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, finding: str) -> Response:  # noqa: ARG002
        return Response(finding_answer(_finding(self, finding)))


class MuteFields(RequestFields):
    """`POST findings/{id}/dismiss|snooze`."""

    reason = serializers.CharField(max_length=2000)
    until = serializers.DateTimeField(required=False)


class FindingMute(Door):
    """Quiet about a finding: `dismiss` for good, `snooze` until a moment; it stays open and the log says so."""

    scopes = {"POST": OPERATE}

    @extend_schema(operation_id="findings_mute", request=MuteFields, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, finding: str, how: str) -> Response:
        row = _finding(self, finding)
        given, ignored = read_fields(MuteFields, request)
        until_at = given.get("until")
        if how == "snooze" and until_at is None:
            raise BadRequest("until: a snooze needs the moment at which it ends.")
        finding_mute(
            finding_id=row.id,
            reason=given["reason"],
            until_at=until_at if how == "snooze" else None,
            by=self.principal.name,
            source=Source.API,
            now=now(),
        )
        return Response({**finding_answer(finding_by_id(row.id)), "ignored": ignored})


class Detectors(Door):
    """Every detector of an attempt: what it has, what it lacks, its last verdict."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="attempts_detectors", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt: str) -> Response:  # noqa: ARG002
        row = attempt_by_code(attempt)
        self.check_cluster(run_by_id(row.run_id).cluster_id)
        said = {one.cause: one for one in detectors_of(row.id)}
        return page_answer([_detector_answer(cause, said.get(cause)) for cause in registry()], following=None)


def _detector_answer(cause: str, row: DetectorRow | None) -> dict[str, Any]:
    detector = registry()[cause]
    return {
        "cause": cause,
        "class": detector.class_,
        "title": detector.title,
        "trigger": detector.trigger,
        "answer": row.answer if row else AnswerKind.UNDECIDED,
        "sentence": row.sentence if row else "Not looked at yet.",
        "have": list(row.have) if row else [],
        "lack": list(row.lack) if row else [],
        "seen_to_step": row.watermark if row else None,
        "evaluated_at": rfc3339(row.evaluated_at) if row else None,
    }


def _listing(door: Door, request: Request, *, run_id: int | None) -> Response:
    limit = limit_read(request)
    if run_id is not None:
        door.check_cluster(run_by_id(run_id).cluster_id)
    node = request.GET.get("node")
    cause = request.GET.get("cause")
    if cause and cause not in registry():
        raise BadRequest(f"cause: must be one of {', '.join(registry())}.")
    rows = findings_of(
        run_id=run_id,
        cluster_id=door.principal.cluster_id,
        state=choice_read(request, "state", choices=["", *FindingState.values], default="") or None,
        class_name=choice_read(request, "class", choices=["", *Class], default="") or None,
        cause=cause or None,
        node=node_by_code(node, cluster_id=door.principal.cluster_id).name if node else None,
        before=cursor_int(request),
        limit=limit + 1,
    )
    following = rows[limit - 1].id if len(rows) > limit else None
    return page_answer([finding_answer(row) for row in rows[:limit]], following=following)


def _finding(door: Door, code: str) -> FindingRow:
    row = finding_by_id(id_read("fin", code))
    door.check_cluster(run_by_id(row.run_id).cluster_id)
    return row
