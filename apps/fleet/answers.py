"""What REST and exports say of the ledger and of names."""

from typing import Any

from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.fleet.selectors import Doubt, ExclusionRow, NoteRow


def exclusion_answer(row: ExclusionRow) -> dict[str, Any]:
    """Return a line of the ledger with what was said under it later."""
    return {
        "id": id_write("exc", row.id),
        "node": row.node,
        "cluster": row.cluster,
        "origin": row.origin,
        "occurrence": row.occurrence,
        "previous": id_write("exc", row.previous_id) if row.previous_id else None,
        "reason": row.reason,
        "by": row.by_name,
        "action": id_write("act", row.action_id) if row.action_id else None,
        "incident": id_write("inc", row.incident_id) if row.incident_id else None,
        "began_at": rfc3339(row.began_at),
        "until_at": rfc3339(row.out_until_at),
        "at_until": row.at_until or None,
        "asked_at": rfc3339(row.asked_at),
        "ended_at": rfc3339(row.ended_at),
        "ended_by": row.ended_by_name or None,
        "ended_reason": row.ended_reason or None,
        "notes": [note_answer(note) for note in row.notes],
    }


def note_answer(row: NoteRow) -> dict[str, Any]:
    """Return a later line about a node."""
    return {
        "kind": row.kind,
        "at": rfc3339(row.at),
        "by": row.by_name,
        "text": row.text,
        "until_at": rfc3339(row.until_at),
        "action": id_write("act", row.action_id) if row.action_id else None,
    }


def doubt_answer(row: Doubt) -> dict[str, Any]:
    """Return a name that nobody has placed."""
    return {
        "node": row.node,
        "id": id_write("node", row.node_id),
        "cluster": row.cluster,
        "why": row.why,
        "candidates": list(row.candidates),
        "heard_at": rfc3339(row.heard_at),
        "created_at": rfc3339(row.created_at),
    }
