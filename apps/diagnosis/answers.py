"""What REST says of findings (CONTRACT, Findings and incidents)."""

from typing import Any

from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.diagnosis.selectors import FindingRow


def finding_answer(row: FindingRow) -> dict[str, Any]:
    """Return a finding (CONTRACT, Findings and incidents)."""
    return {
        "id": id_write("fin", row.id),
        "run": row.run,
        "attempt": id_write("att", row.attempt_id),
        "cause": row.cause,
        "class": row.class_name,
        "level": row.level,
        "state": row.state,
        "certainty": row.certainty,
        "subject": row.subject,
        "victims": list(row.victims),
        "score": row.score,
        "score_meaning": row.score_meaning,
        "since_step": row.since_step,
        "found_step": row.found_step,
        "began_at": rfc3339(row.began_at),
        "found_at": rfc3339(row.found_at),
        "confirmed_at": rfc3339(row.confirmed_at),
        "coverage": {"have": row.coverage_have, "of": row.coverage_of},
        "evidence": row.evidence,
        "verdict": row.verdict,
        "why": row.why,
        "next": row.next,
        "cost_s": row.cost_s,
        "cells": row.cells,
        "proposal": {"kind": row.proposal_kind, "node": row.proposal_node or None},
        "incident": id_write("inc", row.incident_id) if row.incident_id else None,
        "muted": {
            "until": rfc3339(row.muted_until_at),
            "for_good": row.muted_for_good,
            "reason": row.mute_reason or None,
            "by": row.muted_by_name or None,
        },
        "closed_at": rfc3339(row.closed_at),
        "close_reason": row.close_reason or None,
    }
