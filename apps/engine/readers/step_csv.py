"""Seconds per step and rank from a CSV: header `step,0,4,8,…` (rank numbers), then a line per step."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.engine.errors import EngineError

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Steps = NDArray[np.int64]

MOST_RANKS = 131_072
"""As many ranks as an attempt may have. Source: CONTRACT, Common."""
MOST_DIGITS = len(str(MOST_RANKS))
MOST_LINE = 32 * MOST_RANKS
"""Characters of one line: 32 a cell is more than any number needs."""
MOST_CELLS = 64_000_000
"""Cells held at once: 256 MiB of float32."""
BLOCK_CELLS = 1_000_000
"""Cells handed on at once while streaming: 4 MiB."""
SAMPLES = 5
"""Lines not understood that are shown."""
STEP_WORDS = frozenset({"step", "steps", "iteration", "iter"})
ABSENT = frozenset({"", "nan", "null", "none", "na", "n/a", "-"})


class StepCsvMalformed(EngineError):
    """The text is no table of steps and ranks at all; `line` says where that was seen."""

    code = "step_csv_malformed"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Misread:
    """A line that was not understood: its number, why, and its beginning."""

    line: int
    why: str
    text: str


@dataclass(frozen=True, eq=False, slots=True)
class StepBlock:
    """Some lines of the table, in the order of the file.

    ranks: int32 [ranks], the header. steps: int64 [c]. values: float32 [ranks, c], NaN = absent.
    lines: lines read so far (header included). not_understood: how many of them so far. samples: the first of those.
    """

    ranks: Ints
    steps: Steps
    values: Floats
    lines: int
    not_understood: int
    samples: tuple[Misread, ...]


@dataclass(frozen=True, eq=False, slots=True)
class StepTable:
    """The whole table: steps rising, each once (of a repeated step the last line counts).

    ranks: int32 [ranks], rising. steps: int64 [c]. values: float32 [ranks, c], NaN = absent. repeated: lines whose
    step had come before.
    """

    ranks: Ints
    steps: Steps
    values: Floats
    lines: int
    not_understood: int
    repeated: int
    samples: tuple[Misread, ...]


def step_csv_blocks(lines: Iterable[str], *, block_cells: int = BLOCK_CELLS) -> Iterator[StepBlock]:
    """Yield the table in blocks of about `block_cells` cells; the last block may hold no step, but has the counts.

    lines: the text's lines, with or without line ends; comma, semicolon or tab separated. Empty lines and lines that
        begin with # are passed over. Empty cells, NaN, null and infinities are absent.

    Raises:
        StepCsvMalformed: no header, ranks that are no numbers or come twice, too many ranks, a line too long.

    Cost: O(cells), memory O(block_cells). Source: the layout of samples/straggler-traces; ours.

    >>> block = next(step_csv_blocks(["step,0,4", "7,1.5,", "8,nan,2"]))
    >>> block.ranks.tolist(), block.steps.tolist(), block.values.tolist()
    ([0, 4], [7, 8], [[1.5, nan], [nan, 2.0]])
    """
    numbered = _lines(lines)
    at, head = next(numbered, (0, ""))
    delimiter = max(",;\t", key=head.count)
    ranks = _header(head, at, delimiter)
    steps: list[int] = []
    rows: list[list[float]] = []
    samples: list[Misread] = []
    bad, seen = 0, at
    for seen, text in numbered:
        try:
            step, row = _row(text, delimiter, len(ranks))
        except ValueError as error:
            bad += 1
            if len(samples) < SAMPLES:
                samples.append(Misread(seen, str(error), text[:80]))
            continue
        steps.append(step)
        rows.append(row)
        if len(rows) * len(ranks) >= block_cells:
            yield _block(ranks, steps, rows, seen, bad, samples)
            steps, rows = [], []
    yield _block(ranks, steps, rows, seen, bad, samples)


def step_csv_read(lines: Iterable[str], *, most_cells: int = MOST_CELLS) -> StepTable:
    """Return the whole table.

    Raises:
        StepCsvMalformed: as `step_csv_blocks`; also no line understood, or more than `most_cells` cells.

    Cost: O(cells).

    >>> table = step_csv_read(["step,4,0", "9,1,2", "8,3,4", "9,5,6", "what?"])
    >>> table.ranks.tolist(), table.steps.tolist(), table.values.tolist(), table.repeated, table.not_understood
    ([0, 4], [8, 9], [[4.0, 6.0], [3.0, 5.0]], 1, 1)
    """
    blocks: list[StepBlock] = []
    cells = 0
    for block in step_csv_blocks(lines, block_cells=min(BLOCK_CELLS, most_cells)):
        cells += block.values.size
        if cells > most_cells:
            raise StepCsvMalformed(
                "The table is too large to be read at once.", line=block.lines, most_cells=most_cells
            )
        blocks.append(block)
    last = blocks[-1]
    steps = np.concatenate([block.steps for block in blocks])
    if not len(steps):
        sample = last.samples[0].text if last.samples else ""
        raise StepCsvMalformed("No line could be read as a step.", line=last.lines, sample=sample)
    values = np.concatenate([block.values for block in blocks], axis=1)
    # Of equal steps the last line counts: unique finds the first, so the file is looked at from its end.
    unique, from_end = np.unique(steps[::-1], return_index=True)
    order = np.argsort(last.ranks, kind="stable")
    return StepTable(
        ranks=last.ranks[order],
        steps=unique,
        values=values[order][:, len(steps) - 1 - from_end],
        lines=last.lines,
        not_understood=last.not_understood,
        repeated=len(steps) - len(unique),
        samples=last.samples,
    )


def _lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(lines, start=1):
        if len(text) > MOST_LINE:
            raise StepCsvMalformed("A line is longer than any table of ranks needs.", line=number, most=MOST_LINE)
        clean = text.lstrip("\ufeff").strip()
        if clean and not clean.startswith("#"):
            yield number, clean


def _header(head: str, line: int, delimiter: str) -> Ints:
    names = _cells(head, delimiter)
    if len(names) < 2 or names[0].strip().lower() not in STEP_WORDS:
        raise StepCsvMalformed("The header must be: step, then the number of each rank.", line=line, text=head[:80])
    if len(names) - 1 > MOST_RANKS:
        raise StepCsvMalformed("There are more ranks than an attempt may have.", line=line, most=MOST_RANKS)
    ranks = []
    for name in names[1:]:
        digits = name.strip().lower().removeprefix("rank").strip(" _-")
        if not digits.isdecimal() or len(digits) > MOST_DIGITS or int(digits) >= MOST_RANKS:
            raise StepCsvMalformed("A rank in the header is no rank's number.", line=line, text=name[:40])
        ranks.append(int(digits))
    if len(set(ranks)) != len(ranks):
        raise StepCsvMalformed("A rank stands in the header twice.", line=line)
    return np.array(ranks, np.int32)


def _row(text: str, delimiter: str, ranks: int) -> tuple[int, list[float]]:
    cells = _cells(text, delimiter)
    if len(cells) != ranks + 1:
        raise ValueError(f"{len(cells) - 1} values where the header has {ranks} ranks")
    step = int(cells[0])
    if not 0 <= step < 2**53:
        raise ValueError("the step is out of range")
    return step, [_value(cell) for cell in cells[1:]]


def _cells(text: str, delimiter: str) -> list[str]:
    # A number needs no quotes and a quoted one holds no delimiter, so the quotes can simply go.
    return text.replace('"', "").split(delimiter)


def _value(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        if cell.strip().lower() in ABSENT:
            return math.nan
        raise ValueError(f"“{cell.strip()[:20]}” is no number") from None
    return value if math.isfinite(value) else math.nan


def _block(
    ranks: Ints, steps: list[int], rows: list[list[float]], lines: int, bad: int, samples: list[Misread]
) -> StepBlock:
    values = np.array(rows, np.float32).reshape(len(rows), len(ranks)).T
    return StepBlock(ranks, np.array(steps, np.int64), np.ascontiguousarray(values), lines, bad, tuple(samples))
