"""Hostlists: `trn[001-063],login[1-2]-ipmi` and the names they stand for, measured before they are expanded."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, product

from apps.engine.errors import EngineError

MOST_NAMES = 100_000
"""Names of one list: more than the largest cluster has, and few enough to hold (case 59: a list can expand to millions)."""
MOST_CHARACTERS = 1_000_000
"""Length of a list's text: 100,000 names written out one by one."""
MOST_DIGITS = 18
"""Digits of a number in brackets: what fits 64 bits."""


class HostlistMalformed(EngineError):
    """The text is no hostlist; the facts hold the part that is not understood."""

    code = "hostlist_malformed"
    http_status = 422


class HostlistTooLarge(EngineError):
    """The list stands for more names than are allowed; nothing was expanded."""

    code = "hostlist_too_large"
    http_status = 422


@dataclass(frozen=True, slots=True)
class _Span:
    """Numbers `first` to `last`, written with at least `width` digits."""

    first: int
    last: int
    width: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def words(self) -> Iterator[str]:
        return (f"{number:0{self.width}d}" for number in range(self.first, self.last + 1))


_Part = str | tuple[_Span, ...]


def hostlist_count(text: str) -> int:
    """Return how many names a hostlist stands for, repeated ones counted again; nothing is expanded.

    text: as Slurm writes it.
    Raises: HostlistMalformed.
    Cost: the length of `text`, whatever it stands for.
    Source: ours; the grammar is that of `scontrol show hostnames`.

    >>> hostlist_count("bigcluster[1-1000000]")
    1000000
    """
    return sum(_count(parts) for parts in _read(text))


def hostlist_expand(text: str, *, most: int = MOST_NAMES) -> list[str]:
    """Return the names of a hostlist in its order, each once.

    text: as Slurm writes it. most: names allowed, repeated ones counted again.
    Raises: HostlistMalformed; HostlistTooLarge if there are more than `most`, before any is made.
    Cost: n names.
    Source: ours.

    >>> hostlist_expand("nvl-T[09-10],login")
    ['nvl-T09', 'nvl-T10', 'login']
    """
    items = _read(text)
    count = sum(_count(parts) for parts in items)
    if count > most:
        raise HostlistTooLarge(
            f"This hostlist stands for {count:,} names; {most:,} are allowed.", count=count, most=most
        )
    return list(dict.fromkeys(name for parts in items for name in _names(parts)))


def hostlist_compress(names: Iterable[str]) -> str:
    """Return names as one hostlist, the last number of each folded; the order is by name.

    names: without commas, brackets or blanks.
    Raises: HostlistMalformed if a name is none.
    Cost: n log n.
    Source: ours; Slurm reads it back to the same names.

    >>> hostlist_compress(["trn002", "trn001", "trn004", "login"])
    'login,trn[001-002,004]'
    """
    folded: dict[tuple[str, int, str], set[int]] = {}
    plain: set[str] = set()
    for name in names:
        if not name or not _NAME.fullmatch(name):
            raise HostlistMalformed(f"“{name[:80]}” is not the name of a node.", name=name[:80])
        found = _LAST_NUMBER.fullmatch(name)
        if found is None or len(found[2]) > MOST_DIGITS:
            plain.add(name)
            continue
        head, digits, tail = found.groups()
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        folded.setdefault((head, width or -_natural(digits), tail), set()).add(int(digits))
    lists = [*plain, *(_fold(key, numbers) for key, numbers in _joined(folded).items())]
    return ",".join(sorted(lists))


_NAME = re.compile(r"[^\s,\[\]]+")
_LAST_NUMBER = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
_SPAN = re.compile(r"(\d+)(?:-(\d+))?")


def _natural(digits: str) -> int:
    return len(digits)


def _joined(folded: dict[tuple[str, int, str], set[int]]) -> dict[tuple[str, int, str], set[int]]:
    """Join numbers without padding to the padded ones of the same width, else to each other.

    `099` and `100` are one range of width 3; `9` and `10` are one of no width.
    """
    joined: dict[tuple[str, int, str], set[int]] = {}
    for (head, width, tail), numbers in folded.items():
        if width < 0:
            width = -width if (head, -width, tail) in folded else 0
        joined.setdefault((head, width, tail), set()).update(numbers)
    return joined


def _fold(key: tuple[str, int, str], numbers: set[int]) -> str:
    head, width, tail = key
    spans = []
    # Neighbours differ from their place by the same amount.
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        values = [value for _, value in run]
        first, last = f"{values[0]:0{width}d}", f"{values[-1]:0{width}d}"
        spans.append(first if len(values) == 1 else f"{first}-{last}")
    if len(numbers) == 1:
        return f"{head}{spans[0]}{tail}"
    return f"{head}[{','.join(spans)}]{tail}"


def _read(text: str) -> list[tuple[_Part, ...]]:
    if len(text) > MOST_CHARACTERS:
        raise HostlistTooLarge(f"This hostlist has {len(text):,} characters.", count=len(text), most=MOST_CHARACTERS)
    items = [item.strip() for item in _items(text)]
    return [_parts(item) for item in items if item]


def _items(text: str) -> Iterator[str]:
    """Cut at the commas that stand outside brackets."""
    begin, inside = 0, False
    for place, letter in enumerate(text):
        if letter == "[":
            if inside:
                raise _malformed(text[begin : place + 1])
            inside = True
        elif letter == "]":
            if not inside:
                raise _malformed(text[begin : place + 1])
            inside = False
        elif letter == "," and not inside:
            yield text[begin:place]
            begin = place + 1
    if inside:
        raise _malformed(text[begin:])
    yield text[begin:]


def _parts(item: str) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    for place, piece in enumerate(re.split(r"\[([^\]]*)\]", item)):
        if place % 2:
            parts.append(tuple(_span(word, item) for word in piece.split(",")))
        elif piece:
            if not _NAME.fullmatch(piece):
                raise _malformed(item)
            parts.append(piece)
    return tuple(parts)


def _span(word: str, item: str) -> _Span:
    found = _SPAN.fullmatch(word.strip())
    if found is None or max(len(found[1]), len(found[2] or "")) > MOST_DIGITS:
        raise _malformed(item)
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise _malformed(item)
    return _Span(first, last, len(found[1]))


def _count(parts: tuple[_Part, ...]) -> int:
    return math.prod(sum(len(span) for span in part) for part in parts if not isinstance(part, str))


def _names(parts: tuple[_Part, ...]) -> Iterator[str]:
    words = [[part] if isinstance(part, str) else [word for span in part for word in span.words()] for part in parts]
    return ("".join(chosen) for chosen in product(*words))


def _malformed(part: str) -> HostlistMalformed:
    return HostlistMalformed(f"“{part[:80]}” is no hostlist.", part=part[:80])
