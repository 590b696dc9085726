"""An incident written up: Markdown for people, the same facts as JSON."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from apps.common.access import Principal
from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.diagnosis.selectors import FindingRow
from apps.incidents.selectors import IncidentRow, TimelineRow


def incident_answer(row: IncidentRow, *, findings: Sequence[int]) -> dict[str, Any]:
    """Return an incident as REST says it."""
    return {
        "id": id_write("inc", row.id),
        "number": row.number,
        "state": row.state,
        "class": row.class_name,
        "cause": row.cause,
        "subject": row.subject,
        "level": row.level,
        "certainty": row.certainty,
        "title": row.title,
        "run": row.run,
        "attempt": id_write("att", row.attempt_id) if row.attempt_id else None,
        "cluster": row.cluster,
        "node": row.node,
        "owner": row.owner_name or None,
        "began_at": rfc3339(row.began_at),
        "found_at": rfc3339(row.found_at),
        "acknowledged_at": rfc3339(row.acknowledged_at),
        "acknowledged_by": row.acknowledged_by_name or None,
        "mitigated_at": rfc3339(row.mitigated_at),
        "resolved_at": rfc3339(row.resolved_at),
        "resolved_by": row.resolved_by_name or None,
        "resolution": row.resolution or None,
        "cause_was": row.answer or None,
        "count": row.count,
        "first_seen_at": rfc3339(row.first_seen_at),
        "last_seen_at": rfc3339(row.last_seen_at),
        "previous": row.previous_number,
        "gpu_hours_lost": row.gpu_hours_lost,
        "findings": [id_write("fin", finding_id) for finding_id in findings],
    }


def timeline_answer(row: TimelineRow, *, who: Principal) -> dict[str, Any]:
    """Return a row of a timeline as REST says it to a caller."""
    return {
        "id": row.id,
        "happened_at": rfc3339(row.happened_at),
        "recorded_at": rfc3339(row.recorded_at),
        "uncertainty_s": row.uncertainty_s,
        "kind": row.kind,
        "group": row.group,
        "source": row.source,
        "actor_name": row.actor_name or None,
        "text": row.text,
        "subject": row.subject,
        "payload": who.shown(row.payload),
        "pinned": row.pinned,
        "edited": rfc3339(row.edited_at),
    }


def markdown_of(row: IncidentRow, findings: Sequence[FindingRow], timeline: Sequence[TimelineRow]) -> str:
    """Return the write-up as Markdown: summary, cost, evidence, timeline with both stamps."""
    lost = "not measured" if row.gpu_hours_lost is None else f"{row.gpu_hours_lost:,.1f} GPU-hours"
    lines = [
        f"# INC-{row.number}: {_plain(row.title)}",
        "",
        f"- State: {row.state.lower()}, {row.level.lower()}, {row.certainty.lower()}",
        f"- Run: {row.run or '–'}, node: {row.node or '–'}, owner: {_plain(row.owner_name) or '–'}",
        f"- Class and cause: {row.class_name.lower()}, `{row.cause}`",
        f"- Began {_at(row.began_at)}, found {_at(row.found_at)}, acknowledged {_at(row.acknowledged_at)}, "
        f"mitigated {_at(row.mitigated_at)}, resolved {_at(row.resolved_at)}",
        f"- Lost: {lost}",
    ]
    pinned = [entry for entry in timeline if entry.pinned]
    lines += [
        "",
        *(f"> {_plain(entry.text)} ({_plain(entry.actor_name)}, {_at(entry.happened_at)})" for entry in pinned),
    ]
    lines += ["", "## Findings", ""]
    for finding in findings:
        lines += [f"### {finding.cause}: {_plain(finding.verdict)}", "", _plain(finding.why), ""]
        lines += ["| evidence | value | against |", "|---|---|---|"]
        lines += [
            _table_row(one["name"], f"{one['value']} {one['unit']}", one.get("reference") or "")
            for one in finding.evidence
        ]
        lines += [""]
    lines += ["## Timeline (UTC)", "", "| happened | recorded | who | what |", "|---|---|---|---|"]
    lines += [
        _table_row(_at(one.happened_at), _at(one.recorded_at), one.actor_name or one.source.lower(), one.text)
        for one in timeline
    ]
    return "\n".join([*lines, ""])


def _table_row(*cells: object) -> str:
    return "| " + " | ".join(_plain(str(cell)) for cell in cells) + " |"


def _at(moment: datetime | None) -> str:
    return "–" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def _plain(text: str) -> str:
    """Return text that cannot break a table, start a heading or carry markup."""
    flat = " ".join(text.split())
    for sign in "\\|<>`*_[]":
        flat = flat.replace(sign, f"\\{sign}")
    return flat
