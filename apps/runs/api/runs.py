"""REST doors of runs."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import ADMIN, OPERATE, READ, REPORT
from apps.common.api import MOST_LIMIT, Door, choice_read, cursor_int, limit_read, page_answer, read_fields
from apps.common.clock import now
from apps.common.errors import Forbidden, NotFound
from apps.fleet.selectors import cluster_by_name
from apps.journal.choices import Source
from apps.runs.api.answers import run_answer, run_whole_answer
from apps.runs.api.fields import RunFields
from apps.runs.choices import RunState
from apps.runs.launcher import launcher_checked
from apps.runs.limits import limits_checked, modes_checked
from apps.runs.selectors import RunRow, run_by_code, runs_all
from apps.runs.services import ADMINISTRATIVE, OPERATIONAL, run_cluster, run_put, slug_checked


class Runs(Door):
    """All runs, newest first."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="runs_list", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        limit = limit_read(request)
        state = choice_read(request, "state", choices=["", *RunState.values], default="")
        cluster_id = self.principal.cluster_id
        if name := request.GET.get("cluster"):
            cluster_id = cluster_by_name(name).id
            self.check_cluster(cluster_id)
        rows = _runs_in(state, cluster_id=cluster_id, before=cursor_int(request), limit=limit + 1)
        following = rows[limit - 1].id if len(rows) > limit else None
        moment = now()
        return page_answer([run_answer(row, now=moment) for row in rows[:limit]], following=following)


def _launcher_before(code: str) -> Mapping[str, Any]:
    with suppress(NotFound):
        return run_by_code(code).launcher
    return {}


def _runs_in(state: str, *, cluster_id: int | None, before: int | None, limit: int) -> list[RunRow]:
    """Return runs in a state, newest first. What state a run is in follows from much, so it is read and then chosen."""
    found: list[RunRow] = []
    while len(found) < limit:
        rows = runs_all(cluster_id=cluster_id, before=before, limit=MOST_LIMIT if state else limit)
        found += [row for row in rows if state in ("", row.state)]
        if not state or len(rows) < MOST_LIMIT:
            break
        before = rows[-1].id
    return found[:limit]


class OneRun(Door):
    """One run with its settings."""

    scopes = {"GET": READ, "PUT": REPORT}

    @extend_schema(operation_id="runs_read", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, code: str) -> Response:  # noqa: ARG002
        run = run_by_code(code)
        self.check_cluster(run.cluster_id)
        return Response(run_whole_answer(run, now=now(), with_launcher=self.principal.may(ADMIN)))

    @extend_schema(operation_id="runs_put", request=RunFields, responses=OpenApiTypes.OBJECT)
    def put(self, request: Request, code: str) -> Response:
        slug_checked(code)
        given, ignored = read_fields(RunFields, request)
        self._check_fields(given)
        moment = now()
        cluster_id = run_cluster(
            slug=code, name=given.pop("cluster", None), bound_id=self.principal.cluster_id, now=moment
        )
        if "limits" in given:
            given["limits"] = limits_checked(given["limits"])
        if "modes" in given:
            given["modes"] = modes_checked(given["modes"])
        if "launcher" in given:
            given["launcher"], unknown = launcher_checked(given["launcher"], before=_launcher_before(code))
            ignored += unknown
        run_id, is_new = run_put(
            slug=code, cluster_id=cluster_id, fields=given, by=self.principal.name, source=Source.API, now=moment
        )
        run = run_by_code(code)
        assert run.id == run_id
        answer = run_whole_answer(run, now=moment, with_launcher=self.principal.may(ADMIN))
        return Response({**answer, "ignored": ignored}, 201 if is_new else 200)

    def _check_fields(self, given: dict[str, object]) -> None:
        for scope, names in ((OPERATE, OPERATIONAL), (ADMIN, ADMINISTRATIVE)):
            beyond = sorted(set(names) & set(given))
            if beyond and not self.principal.may(scope):
                raise Forbidden(f"{', '.join(beyond)}: needs the scope “{scope}”. Nothing was changed.", fields=beyond)
