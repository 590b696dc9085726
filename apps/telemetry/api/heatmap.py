"""REST doors of the rank × step picture."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import READ
from apps.common.api import Door, etag_of, with_etag
from apps.engine.tiles.pyramid import POOLS
from apps.engine.tiles.ratio import RELATIVES
from apps.engine.tiles.rows import ORDERS
from apps.runs.selectors import AttemptRow, attempt_by_code, attempts_of, run_by_code, run_by_id
from apps.telemetry.api.asking import ask_read
from apps.telemetry.api.pictures import BINARY, line_answer, picture_binary, picture_json
from apps.telemetry.selectors.heatmap import View, heatmap_open, heatmap_read
from apps.telemetry.selectors.lines import line_open, line_read
from apps.telemetry.selectors.pictures import AXES, Heatmap, picture_empty
from apps.telemetry.selectors.stitched import run_heatmap_open, run_heatmap_read
from apps.telemetry.selectors.timeaxis import durations_of, over_time

PARAMETERS = [
    OpenApiParameter("metric", str, description="default compute_s, else step_s"),
    OpenApiParameter("from", int, description="first step; without it the newest columns are drawn"),
    OpenApiParameter("to", int, description="the step after the last"),
    OpenApiParameter("rows", int, description="at most so many rows; ranks beyond share rows"),
    OpenApiParameter("columns", int, description="at most so many columns; steps beyond share columns"),
    OpenApiParameter("relative", str, enum=list(RELATIVES)),
    OpenApiParameter("pool", str, enum=list(POOLS), description="what shows where several values share a cell"),
    OpenApiParameter("axis", str, enum=list(AXES)),
    OpenApiParameter("order", str, enum=list(ORDERS)),
    OpenApiParameter("since", str, description="a cursor: only columns that changed since"),
    OpenApiParameter("ranks", str, description="only these ranks, such as 0-7,16"),
]


class Picture(Door):
    """Base of the doors that answer a picture as JSON or as packed numbers."""

    scopes = {"GET": READ}

    def perform_content_negotiation(self, request: Request, force: bool = False) -> tuple[BaseRenderer, str]:  # noqa: ARG002
        """Errors are JSON whatever form of numbers was asked for."""
        renderer = self.get_renderers()[0]
        return renderer, str(renderer.media_type)

    def answer(self, request: Request, key: Sequence[object], draw: Any) -> Response:
        """Answer 304, or the picture that `draw` gives, in the form that was asked for."""
        binary = BINARY in request.headers.get("Accept", "")

        def build() -> Response:
            picture: Heatmap = draw()
            body = picture_binary(picture) if binary else picture_json(picture)
            return cast(Response, HttpResponse(body, content_type=BINARY if binary else "application/json"))

        response = with_etag(request, etag_of(binary, *key), build)
        response["Vary"] = "Accept, Authorization, Cookie"
        return response


class AttemptHeatmap(Picture):
    """The rank × step picture of an attempt."""

    @extend_schema(operation_id="attempts_heatmap", parameters=PARAMETERS, responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt: str) -> Response:
        view = heatmap_open(attempt_read(self, attempt), ask_read(request))
        return self.answer(request, view.key, lambda: _on_axis(heatmap_read(view), [view]))


class RunHeatmap(Picture):
    """The rank × step picture of a run: its attempts, the newest one winning from its first step on."""

    @extend_schema(
        operation_id="runs_heatmap",
        parameters=[*PARAMETERS, OpenApiParameter("redone", str, enum=["0", "1"], description="1: show old tails")],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, code: str) -> Response:
        run = run_by_code(code)
        self.check_cluster(run.cluster_id)
        view = run_heatmap_open(attempts_of(run.id), ask_read(request))

        def draw() -> Heatmap:
            picture = run_heatmap_read(view)
            return picture_empty(view.ask) if picture is None else _on_axis(picture, view.views)

        return self.answer(request, (run.id, *view.key), draw)


class AttemptSeries(Picture):
    """One line of an attempt: mean, median and worst over its ranks, a value a column."""

    @extend_schema(
        operation_id="attempts_series", parameters=PARAMETERS[:3] + PARAMETERS[4:5], responses=OpenApiTypes.OBJECT
    )
    def get(self, request: Request, attempt: str) -> Response:
        ask = ask_read(request)
        row = attempt_read(self, attempt)
        view = line_open(row, metric=ask.metric, first=ask.first, end=ask.end, columns=ask.columns)
        return with_etag(request, etag_of("line", *view.key), lambda: Response(line_answer(line_read(view))))


def _on_axis(picture: Heatmap, views: Sequence[View]) -> Heatmap:
    """The picture on the axis that was asked for."""
    if views[-1].ask.axis == "step":
        return picture
    took = np.full(len(picture.drawn.steps), np.nan)
    for view in views:
        mine = picture.drawn.attempts == view.attempt.number
        took[mine] = durations_of(view, picture.drawn.steps[mine], steps_per_column=picture.steps_per_column)
    return over_time(picture, durations_s=took, columns=views[-1].ask.columns)


def attempt_read(door: Door, code: str) -> AttemptRow:
    """Return the attempt that an address names, if the caller may see it."""
    row = attempt_by_code(code)
    door.check_cluster(run_by_id(row.run_id).cluster_id)
    return row
