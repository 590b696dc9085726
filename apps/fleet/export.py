"""The ledger written out, line by line: however long it is, a page of it and the numbers of stays are in memory."""

import csv
import io
from collections.abc import Iterator, Sequence

import orjson

from apps.fleet.answers import exclusion_answer
from apps.fleet.selectors import LedgerFilter, ledger_pages

AT_ONCE = 1000

COLUMNS = (
    "id", "node", "cluster", "origin", "occurrence", "previous", "reason", "by", "action", "incident", "began_at",
    "until_at", "at_until", "asked_at", "ended_at", "ended_by", "ended_reason",
)  # fmt: skip


def ledger_csv(wanted: LedgerFilter) -> Iterator[str]:
    """Return the ledger as CSV in parts, newest line first."""
    yield _csv([COLUMNS])
    for rows in ledger_pages(wanted, size=AT_ONCE):
        answers = [exclusion_answer(row) for row in rows]
        yield _csv([[_cell(answer[name]) for name in COLUMNS] for answer in answers])


def ledger_json(wanted: LedgerFilter) -> Iterator[str]:
    """Return the ledger as one JSON list in parts, newest line first; each line with what was said under it later."""
    lead = "["
    for rows in ledger_pages(wanted, size=AT_ONCE):
        for row in rows:
            yield lead + orjson.dumps(exclusion_answer(row)).decode()
            lead = ",\n"
    yield "[]\n" if lead == "[" else "]\n"


FORMATS = {"csv": (ledger_csv, "text/csv; charset=utf-8"), "json": (ledger_json, "application/json")}
"""In which forms the ledger is sent: who writes each, and what it is called on the way."""


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


def _cell(value: object) -> str:
    """Return a cell; what a spreadsheet would take for a formula is kept from being one.

    >>> _cell("=1+1"), _cell(None), _cell(3)
    ("'=1+1", '', '3')
    """
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
