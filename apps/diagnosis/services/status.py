"""What diagnosis says of a run as a whole: hung, slow, silent, and its own best pace."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from django.db.models import Q

from apps.diagnosis.choices import CloseReason, FindingState
from apps.diagnosis.models import DetectorState, Finding
from apps.engine.detection import Columns, Level, ProposalKind
from apps.engine.estimates.progress import BestPace
from apps.runs.selectors import RunRow
from apps.runs.services import status_update

SLOWS = ("COMPUTE", "COORDINATION")
NOT_SLOWNESS = frozenset({"hang", "rank_lost", "numeric_fault"})
SLOWS_TOO = frozenset({"checkpoint_queue"})
"""Causes of other classes during which training stands again and again: such a run is not on pace."""
MAKES_SAVES_SUSPECT = frozenset({"numeric_fault"})
"""Causes that may be in whatever is saved from their beginning on."""


def casts_doubt(row: Finding) -> bool:
    """Return whether what was saved since a finding's step may hold what it found: a skipped update (INFO) is in no state."""
    return row.cause in MAKES_SAVES_SUSPECT and row.since_step is not None and row.level != Level.INFO


def doubted_from(attempt_id: int) -> int | None:
    """Return the step from which on an attempt's saves are suspect, None if none is.

    A finding casts doubt while it is open, and for good if it blamed a machine (wrong numbers need not be NaN) or if nobody
    saw it end: it was seen late, or the attempt was over first.
    """
    rows = Finding.objects.filter(attempt_id=attempt_id, cause__in=MAKES_SAVES_SUSPECT)
    unseen = Q(close_reason__in=(CloseReason.LATE, CloseReason.ATTEMPT_ENDED))
    lasting = Q(proposal_kind=ProposalKind.EXCLUDE_NODE) | unseen
    doubting = rows.filter(Q(state=FindingState.OPEN) | lasting)
    return min((row.since_step for row in doubting if casts_doubt(row) and row.since_step is not None), default=None)


PACE = "_pace"
"""The row of DetectorState that keeps the run's own best pace; no cause begins with an underscore."""


def run_status_refresh(run: RunRow, *, attempt_id: int, best_step_s: float | None) -> None:
    """Write what the open findings of the newest attempt mean for the run, if anything of it changed."""
    if run.attempt_id != attempt_id:
        return
    rows = list(Finding.objects.filter(attempt_id=attempt_id, state=FindingState.OPEN))
    slowing = [row for row in rows if _slows(row)]
    wanted: dict[str, Any] = {
        "hang": max((row.certainty for row in rows if row.cause == "hang"), key=_certain, default=""),
        "slow": bool(slowing),
        "slow_since_at": min((row.began_at or row.found_at for row in slowing), default=None),
        "silent": any(row.cause == "no_telemetry" and row.subject.get("kind") == "RUN" for row in rows),
    }
    wanted["suspect_from_step"] = doubted_from(attempt_id)
    if best_step_s is not None:
        wanted["own_best_step_s"] = best_step_s
    changed = {name: value for name, value in wanted.items() if getattr(run, name) != value}
    if changed:
        status_update(run_id=run.id, **changed)


def best_pace_learn(*, attempt_id: int, columns: Columns, is_slow: bool, now: datetime) -> float | None:
    """Return the attempt's own best step time in seconds after these columns, None as long as it is not known.

    While something is known to slow it (`is_slow`) nothing is learnt: the best of slow steps is no best.
    """
    row, _ = DetectorState.objects.get_or_create(attempt_id=attempt_id, cause=PACE, defaults={"evaluated_at": now})
    fresh = columns.steps > (row.watermark if row.watermark is not None else -1)
    step_s = columns.values.get("step_s")
    pace = BestPace.read(row.memory)
    if step_s is None or not fresh.any():
        return pace.best_step_s
    usable = fresh & ~columns.skip
    with np.errstate(all="ignore"):
        medians: Sequence[float] = np.nanmedian(step_s[:, usable], axis=0).tolist() if usable.any() else []
    pace = pace if is_slow else pace.learn(medians)
    row.memory, row.watermark, row.evaluated_at = pace.write(), int(columns.steps[-1]), now
    row.save()
    return pace.best_step_s


def _slows(row: Finding) -> bool:
    slows = row.class_name in SLOWS or row.cause in SLOWS_TOO
    return slows and row.cause not in NOT_SLOWNESS and row.level != Level.INFO


def _certain(word: str) -> int:
    return ("", "SUSPECTED", "CONFIRMED").index(word)
