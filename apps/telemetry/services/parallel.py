"""Which part of the model each rank holds, from a layout in words or from a rule: for imports that have no placement."""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from apps.common.errors import BadRequest

Ranks = NDArray[np.int64]

ORDER = ("tp", "cp", "dp", "pp")
"""Which coordinate changes fastest from rank to rank, as Megatron numbers ranks: neighbours share a tensor group."""

MOST_SIZE = 131_072
_OPERATORS: dict[type[ast.operator], Callable[[Ranks, Ranks], Ranks]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def layout_parse(text: str) -> dict[str, int]:
    """Return the sizes in `tp=4,dp=4,pp=4`.

    Raises:
        BadRequest: a name that is no dimension, or a size that is none.

    >>> layout_parse("tp=4, pp=2")
    {'tp': 4, 'pp': 2}
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, size = (piece.strip() for piece in part.partition("="))
        if name not in ORDER or not sign or not size.isdecimal() or not 1 <= int(size[:9]) <= MOST_SIZE:
            raise BadRequest(f"layout: “{part[:40]}” is none of tp=, cp=, dp=, pp= with a size.")
        sizes[name] = int(size)
    if not sizes:
        raise BadRequest("layout: no size was given, such as tp=4,dp=4,pp=4.")
    return sizes


def order_parse(text: str) -> tuple[str, ...]:
    """Return the order of coordinates in `tp-cp-dp-pp`, fastest first; those not named come last.

    Raises:
        BadRequest: a name that is no dimension, or one that comes twice.
    """
    names = tuple(name.strip() for name in text.split("-") if name.strip())
    if len(set(names)) != len(names) or not set(names) <= set(ORDER):
        raise BadRequest(f"order: “{text[:40]}” must name tp, cp, dp, pp, each once, the fastest first.")
    return (*names, *(name for name in ORDER if name not in names))


def coords_of(ranks: Ranks, sizes: Mapping[str, int], order: Sequence[str] = ORDER) -> list[dict[str, int]]:
    """Return each rank's coordinates.

    Raises:
        BadRequest: a rank beyond the layout.

    >>> coords_of(np.array([0, 5, 16]), {"tp": 4, "dp": 4, "pp": 4})
    [{'tp': 0, 'dp': 0, 'pp': 0}, {'tp': 1, 'dp': 1, 'pp': 0}, {'tp': 0, 'dp': 0, 'pp': 1}]
    """
    world = int(np.prod(list(sizes.values()), dtype=np.int64))
    if len(ranks) and int(ranks.max()) >= world:
        raise BadRequest(f"layout: it has {world} ranks, and the file has rank {int(ranks.max())}.", world_size=world)
    out: list[dict[str, int]] = [{} for _ in ranks]
    left = ranks.astype(np.int64)
    for name in order:
        if name not in sizes:
            continue
        for coords, place in zip(out, (left % sizes[name]).tolist(), strict=True):
            coords[name] = place
        left = left // sizes[name]
    return out


def stages_by_rule(rule: str, ranks: Ranks) -> Ranks:
    """Return each rank's stage by a rule of whole numbers such as `rank // 16` or `(rank // 4) % 4`.

    Raises:
        BadRequest: the rule is none.

    >>> stages_by_rule("rank // 16 % 4", np.array([0, 17, 70])).tolist()
    [0, 1, 0]
    """
    try:
        found = _value(ast.parse(rule[:200], mode="eval").body, ranks.astype(np.int64))
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            stages = np.broadcast_to(np.asarray(found, np.int64), ranks.shape).copy()
    except (SyntaxError, ValueError, FloatingPointError, OverflowError, RecursionError, MemoryError) as error:
        raise BadRequest(f"stages: “{rule[:60]}” is no rule such as rank // 16.") from error
    if len(stages) and not 0 <= int(stages.min()) <= int(stages.max()) < MOST_SIZE:
        raise BadRequest(f"stages: “{rule[:60]}” gives stages from {stages.min()} to {stages.max()}.")
    return stages


def _value(node: ast.expr, ranks: Ranks) -> Ranks:
    if isinstance(node, ast.Name) and node.id == "rank":
        return ranks
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MOST_SIZE:
        return np.int64(node.value)  # type: ignore[return-value]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        with np.errstate(divide="raise", invalid="raise"):
            return _OPERATORS[type(node.op)](_value(node.left, ranks), _value(node.right, ranks))
    raise ValueError("not a rule of whole numbers")
