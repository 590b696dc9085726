"""REST doors of attempts and checkpoints."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import OPERATE, READ, REPORT
from apps.common.api import Door, cursor_int, limit_read, page_answer, read_fields
from apps.common.clock import now
from apps.common.errors import Forbidden
from apps.fleet.services import nodes_ensure
from apps.journal.choices import Source
from apps.runs.api.answers import attempt_answer, chains_answer, checkpoint_answer
from apps.runs.api.fields import AttemptFields, EndFields
from apps.runs.choices import Authority
from apps.runs.selectors import (
    AttemptRow,
    attempt_by_code,
    attempts_of,
    chains_listed,
    chains_of,
    checkpoints_of,
    run_by_code,
    run_by_id,
)
from apps.runs.services import attempt_end, attempt_open


class Attempts(Door):
    """The attempts of a run."""

    scopes = {"GET": READ, "POST": REPORT}

    @extend_schema(operation_id="attempts_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:
        run = run_by_code(code)
        self.check_cluster(run.cluster_id)
        limit = limit_read(request)
        rows = attempts_of(run.id, before_number=cursor_int(request), limit=limit + 1)
        following = rows[limit - 1].number if len(rows) > limit else None
        return page_answer(_answers(rows[:limit]), following=following)

    @extend_schema(operation_id="attempts_open", request=AttemptFields, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, code: str) -> Response:
        run = run_by_code(code)
        self.check_cluster(run.cluster_id)
        given, ignored = read_fields(AttemptFields, request)
        if given["force"] and not self.principal.may(OPERATE):
            raise Forbidden(f"force: needs the scope “{OPERATE}”. Nothing was changed.", fields=["force"])
        moment = now()
        nodes_ensure(cluster_id=run.cluster_id, names=given.pop("nodes", []), now=moment)
        row, is_new = attempt_open(run_id=run.id, by=self.principal.name, source=Source.API, now=moment, **given)
        return Response({**_answers([row])[0], "ignored": ignored}, 201 if is_new else 200)


class Chains(Door):
    """The retry chains of a run, newest first: who began each attempt, how far it came, how long the run stood."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="chains_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        run = run_by_code(code)
        self.check_cluster(run.cluster_id)
        return Response(chains_answer(run, chains_listed(run.id)))


class OneAttempt(Door):
    """One attempt."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="attempts_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt: str) -> Response:  # noqa: ARG002
        return Response(_answers([_attempt(self, attempt)])[0])


class AttemptEnd(Door):
    """The end of an attempt, as its own program says."""

    scopes = {"POST": REPORT}

    @extend_schema(operation_id="attempts_end", request=EndFields, responses=OpenApiTypes.OBJECT)
    def post(self, request: Request, attempt: str) -> Response:
        row = _attempt(self, attempt)
        given, ignored = read_fields(EndFields, request)
        attempt_end(
            attempt_id=row.id,
            reason=given["reason"],
            authority=Authority.CLIENT,
            by=self.principal.name,
            source=Source.API,
            now=now(),
        )
        return Response({**_answers([attempt_by_code(attempt)])[0], "ignored": ignored})


class Checkpoints(Door):
    """The saves of an attempt, newest step first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="checkpoints_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt: str) -> Response:
        row = _attempt(self, attempt)
        limit = limit_read(request)
        rows = checkpoints_of(attempt_id=row.id, before_step=cursor_int(request), limit=limit + 1)
        following = rows[limit - 1].step if len(rows) > limit else None
        return page_answer([checkpoint_answer(one) for one in rows[:limit]], following=following)


def _attempt(door: Door, code: str) -> AttemptRow:
    row = attempt_by_code(code)
    door.check_cluster(run_by_id(row.run_id).cluster_id)
    return row


def _answers(rows: list[AttemptRow]) -> list[dict[str, Any]]:
    chains = chains_of({row.run_id for row in rows})
    return [attempt_answer(row, chain=chains[row.id]) for row in rows]
