"""Reading what picture an address asks for."""

from typing import Any, cast

from rest_framework.request import Request

from apps.common.api import choice_read, int_read
from apps.common.errors import BadRequest
from apps.engine.tiles.pyramid import POOLS
from apps.engine.tiles.ratio import RELATIVES
from apps.engine.tiles.rows import ORDERS
from apps.telemetry.selectors.pictures import AXES, Ask

MOST_ROWS = 4096
MOST_COLUMNS = 8192
"""More than any screen has; what is asked beyond a page's worth of cells is pooled further."""
MOST_STEP = 2**53
MOST_PAIRS = 256


def ask_read(request: Request) -> Ask:
    """Return the picture that an address asks for.

    Raises:
        BadRequest: a parameter that cannot be read.
    """
    first, end = _step(request, "from"), _step(request, "to")
    if first is not None and end is not None and end <= first:
        raise BadRequest("to: must be greater than from; from is the first step, to the one after the last.")
    return Ask(
        metric=str(request.GET.get("metric", "")),
        first=first,
        end=end,
        rows=int_read(request, "rows", default=512, least=1, most=MOST_ROWS),
        columns=int_read(request, "columns", default=600, least=1, most=MOST_COLUMNS),
        relative=cast(Any, choice_read(request, "relative", choices=RELATIVES, default="none")),
        pool=cast(Any, choice_read(request, "pool", choices=POOLS, default="worst")),
        axis=cast(Any, choice_read(request, "axis", choices=AXES, default="step")),
        order=cast(Any, choice_read(request, "order", choices=ORDERS, default="rank")),
        since=str(request.GET.get("since", ""))[:80],
        ranks=_ranks(str(request.GET.get("ranks", ""))),
        redone=choice_read(request, "redone", choices=("0", "1"), default="0") == "1",
    )


def _step(request: Request, name: str) -> int | None:
    if request.GET.get(name) in (None, ""):
        return None
    return int_read(request, name, default=0, least=0, most=MOST_STEP)


def _ranks(text: str) -> tuple[tuple[int, int], ...]:
    """`0-7,12` as pairs of first and last."""
    if not text:
        return ()
    pairs = []
    for part in text.split(","):
        first, sign, last = part.strip().partition("-")
        if not (first.isdecimal() and len(first) < 10 and (not sign or (last.isdecimal() and len(last) < 10))):
            raise BadRequest(f"ranks: “{part[:40]}” is no rank and no pair such as 0-7.")
        pairs.append((int(first), int(last) if sign else int(first)))
    if len(pairs) > MOST_PAIRS or any(last < first for first, last in pairs):
        raise BadRequest(f"ranks: up to {MOST_PAIRS} pairs, each from low to high.")
    return tuple(pairs)
