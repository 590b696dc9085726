"""Event lanes under the heatmap, as the page draws them: marks with a place by step or by time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.console import words
from apps.diagnosis.selectors import FindingRow, findings_of
from apps.fleet.selectors import nodes_by_id
from apps.journal.choices import StreamKey
from apps.journal.selectors import EventRow, events_latest
from apps.runs.choices import EndReason, Trust
from apps.runs.selectors import AttemptRow, CheckpointRow, RunRow, attempts_of, checkpoints_of, placement_of

MOST = 400
LATE = timedelta(minutes=2)
KINDS = (
    "node.",
    "rank.exit",
    "rank.xid",
    "telemetry.silent",
    "action.",
    "note.added",
    "practice.",
    "incident.acknowledged",
)
Mark = dict[str, Any]


def lanes_of(run: RunRow, *, now: datetime) -> list[dict[str, Any]]:
    """Return the lanes in their drawn order: attempts, checkpoints, findings, node events, actions, notes."""
    events = events_latest(StreamKey.run(run.id), limit=MOST, kinds=KINDS)
    by_group: dict[str, list[EventRow]] = {}
    for event in events:
        by_group.setdefault(_lane(event.kind), []).append(event)
    notes = by_group.get("notes", ())
    return [
        {"name": "attempts", "marks": _attempts(attempts_of(run.id, limit=50))},
        {
            "name": "checkpoints",
            "marks": [_checkpoint(row, now=now) for row in checkpoints_of(run_id=run.id, limit=200)],
        },
        {
            "name": "findings",
            "marks": [_finding(row) for row in findings_of(run_id=run.id, limit=100)],
        },
        {
            "name": "node events",
            "marks": [_event(row, "event", tone=_tone(row)) for row in by_group.get("node events", ())],
        },
        {
            "name": "actions",
            "marks": [_event(row, "action", open=row.kind.endswith("proposed")) for row in by_group.get("actions", ())],
        },
        {
            "name": "notes",
            "marks": [_event(row, "note", open=abs(row.recorded_at - row.happened_at) > LATE) for row in notes],
        },
    ]


def _lane(kind: str) -> str:
    noun = kind.partition(".")[0]
    if noun == "note":
        return "notes"
    return "node events" if noun in {"node", "rank", "gpu", "telemetry"} else "actions"


def _tone(row: EventRow) -> str:
    return "crit" if row.kind in {"rank.exit", "rank.xid"} else "none" if row.kind == "node.readmitted" else "warn"


def _at(moment: datetime | None, step: int | None = None) -> dict[str, Any] | None:
    if moment is None and step is None:
        return None
    return {"at": rfc3339(moment), "step": step}


def _attempts(rows: Sequence[AttemptRow]) -> list[Mark]:
    """Return each attempt over the steps that are its own: those that a later one did again are the later one's."""
    marks, taken = [], None
    for row in rows:
        marks.append(_attempt(row, taken))
        if row.first_step is not None:
            taken = row.first_step if taken is None else min(taken, row.first_step)
    return marks


def _attempt(row: AttemptRow, taken: int | None) -> Mark:
    until = None if row.last_step is None else row.last_step + 1
    if until is not None and taken is not None:
        until = max(row.first_step or 0, min(until, taken))
    resumed = "" if row.resumed_from_step is None else f", resumed from {words.whole(row.resumed_from_step)}"
    over = "" if row.ended_at is None else f", ended: {EndReason(row.reason).label if row.reason else 'not known why'}"
    return {
        "shape": "bar",
        "from": _at(row.first_step_at or row.started_at, row.first_step),
        "to": None if row.ended_at is None else _at(row.ended_at, until),
        "grows": row.ended_at is None,
        "label": f"attempt {row.number}{resumed}{over}",
        "href": f"?attempt={id_write('att', row.id)}",
    }


def _checkpoint(row: CheckpointRow, *, now: datetime) -> Mark:
    bad = row.trust == Trust.FAILED
    end = row.saved_at or (row.started_at + timedelta(seconds=row.duration_s) if row.duration_s else None)
    took = ""
    if row.duration_s and row.trust != Trust.DELETED:
        took = f" in {words.spell(row.duration_s)}" if row.duration_s >= 1 else f" in under 1{words.NBSP}s"
    queued = f", {words.spell(row.queue_s)} queued" if row.queue_s else ""
    word = {
        "PENDING": "being written",
        "FAILED": "failed",
        "SUSPECT": "complete, suspect",
        "DELETED": "complete, deleted since",
    }.get(row.trust, "complete")
    share = None if not row.duration_s or row.queue_s is None else max(0.0, 1 - row.queue_s / row.duration_s)
    return {
        "shape": "save",
        "bad": bad,
        "from": _at(row.started_at),
        "to": _at(end),
        "grows": end is None and (now - row.started_at).total_seconds() < 3600,
        "write_share": share,
        "label": f"{words.whole(row.step)} {word}{took}{queued}",
        "href": "#timeline",
    }


def _finding(row: FindingRow) -> Mark:
    """Return a finding's bar, at the step it is about: dashed until its confirmation, solid from there on."""
    where = row.subject.get("node") or (f"rank {row.subject['rank']}" if row.subject.get("rank") is not None else "")
    said = " · ".join(part for part in (words.cause(row.cause), str(where), row.certainty.lower()) if part)
    return {
        "shape": "finding",
        "tone": {"CRITICAL": "crit", "INFO": "none"}.get(row.level, "warn"),
        "title": row.verdict,
        "href": "#suspects",
        "from": {"at": rfc3339(row.began_at or row.found_at), "step": row.since_step},
        "confirmed": _at(row.confirmed_at),
        "to": _at(row.closed_at),
        "grows": row.closed_at is None,
        "label": said,
    }


def _event(row: EventRow, shape: str, **more: Any) -> Mark:
    return {"shape": shape, "from": _at(row.happened_at), "label": row.text, "href": f"#e{row.seq}", **more}


def placement_json(attempt_id: int) -> dict[str, dict[str, Any]]:
    """Return node, local rank, stage and coordinates of each rank, by rank."""
    row = placement_of(attempt_id)
    if row is None:
        return {}
    nodes = nodes_by_id(row.node_ids)
    found: dict[str, dict[str, Any]] = {}
    for rank, (node_id, local, stage) in enumerate(
        zip(row.nodes.tolist(), row.local_ranks.tolist(), row.stages.tolist(), strict=True)
    ):
        node = nodes.get(node_id)
        found[str(rank)] = {
            "node": node.name if node else None,
            "local_rank": local if local >= 0 else None,
            "stage": stage if stage >= 0 else None,
            "gpu": row.gpus.get(str(rank)),
            "coords": row.coords.get(str(rank)),
        }
    return found
