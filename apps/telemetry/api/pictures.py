"""A picture as an answer: JSON, or a JSON head with float32 cells behind it (CONTRACT, Heatmap)."""

import struct
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from apps.engine.tiles.rows import SEVERAL
from apps.telemetry.selectors.lines import Line
from apps.telemetry.selectors.pictures import Heatmap

BINARY = "application/octet-stream"
ALIGN = 8
"""Cells begin at a multiple of this, so that a browser can lay a Float32Array over the answer without a copy."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def picture_json(picture: Heatmap) -> bytes:
    """Return a picture as JSON; absent cells are null."""
    head = picture_head(picture)
    head["cells"] = np.ascontiguousarray(picture.drawn.cells)
    return orjson.dumps(head, option=_OPTIONS)


def picture_binary(picture: Heatmap) -> bytes:
    """Return a picture as u32 LE length, JSON without cells, padding to 8 bytes, row-major float32 LE."""
    head = orjson.dumps(picture_head(picture), option=_OPTIONS)
    start = struct.pack("<I", len(head)) + head
    return b"".join((start, b"\0" * (-len(start) % ALIGN), np.ascontiguousarray(picture.drawn.cells, "<f4").data))


def picture_head(picture: Heatmap) -> dict[str, Any]:
    """Return everything about a picture but its cells."""
    drawn = picture.drawn
    return {
        "metric": picture.metric.name,
        "unit": picture.metric.unit if picture.relative == "none" else "×",
        "relative": picture.relative,
        "worst": picture.metric.worst,
        "version": picture.version,
        "rows": rows_answer(picture),
        "steps": [step if step >= 0 else None for step in drawn.steps.tolist()],
        "steps_per_column": picture.steps_per_column,
        "flags": drawn.flags,
        "pooled": {"rows": picture.rows.ranks_per_row, "columns": picture.steps_per_column, "how": picture.how},
        "cursor": picture.cursor,
        "veiled": np.flatnonzero(drawn.veiled).tolist(),
        "ended_at": milliseconds(drawn.ended_s),
        "attempts": drawn.attempts.tolist(),
        "redone": np.flatnonzero(drawn.redone).tolist(),
        "times": None if picture.times_s is None else milliseconds(picture.times_s),
        "metrics": [
            {
                "name": row.name,
                "label": row.label,
                "unit": row.unit,
                "kind": row.kind,
                "compared": row.compared,
                "worst": row.worst,
            }
            for row in picture.metrics
        ],
        "first_step": picture.first_step,
        "last_step": picture.last_step,
        "settled_step": picture.settled_step,
    }


def rows_answer(picture: Heatmap) -> list[dict[str, Any]]:
    """Return the drawn rows from top to bottom; a node or stage that a row's ranks do not share is null."""
    rows, layout = picture.rows, picture.layout
    first, last = picture.ranks[rows.first_rank].tolist(), picture.ranks[rows.last_rank].tolist()
    known = bool((layout.stage >= 0).any())
    out = []
    described = zip(first, last, rows.node.tolist(), rows.stage.tolist(), rows.n_ranks.tolist(), strict=True)
    for low, high, node, stage, n in described:
        name = layout.node_name(node)
        out.append(
            {
                "ranks": [low, high],
                "node": name,
                "stage": stage if known and stage != SEVERAL else None,
                "label": _label(low, high, n, name),
                "count": n,
            }
        )
    return out


def _label(low: int, high: int, count: int, node: str | None) -> str:
    if count == 1:
        return f"rank {low}"
    told = f"ranks {low}–{high}" if high - low + 1 == count else f"{count} ranks of {low}–{high}"
    return node or told


def milliseconds(moments_s: NDArray[np.float64]) -> list[int | None]:
    """Return moments in milliseconds since 1970, as pages compute with them; null where unknown."""
    return [None if at != at else round(at * 1000) for at in moments_s.tolist()]


def line_answer(line: Line) -> dict[str, Any]:
    """Return a line as JSON; columns in which nobody reported are null."""
    return {
        "metric": line.metric.name,
        "unit": line.metric.unit,
        "worst_is": line.metric.worst,
        "version": line.version,
        "steps": line.steps.tolist(),
        "steps_per_column": line.steps_per_column,
        "mean": line.mean,
        "median": line.median,
        "worst": line.worst,
        "ended_at": milliseconds(line.ended_s),
    }
