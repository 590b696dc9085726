"""What the ranks do now: their newest beats, folded and still waiting in the inbox."""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from apps.engine.detection import Phase
from apps.runs.selectors import attempt_by_id
from apps.telemetry.choices import OwnerKind, ScopeKind
from apps.telemetry.selectors.beats import BEAT, Beats, beats_raw
from apps.telemetry.selectors.facts import FactRow, facts_of
from apps.telemetry.selectors.sql import cursor

MOST_WAITING = 20_000
"""Newest waiting reports whose beats are looked at: in a fuller inbox these are the last half minute."""

_WAITING = """SELECT i.beats, i.received_at FROM (
    SELECT sender, boot, seq, sent_at, beats, received_at FROM telemetry_inbox
    WHERE owner_kind = %s AND owner_id = %s ORDER BY id DESC LIMIT %s) i
LEFT JOIN telemetry_folded f ON f.scope_kind = %s AND f.scope_id = %s AND f.sender = i.sender AND f.boot = i.boot
WHERE i.beats IS NOT NULL AND i.seq > coalesce(f.highest, -1) AND NOT EXISTS (
    SELECT 1 FROM telemetry_folded newer WHERE newer.scope_kind = f.scope_kind AND newer.scope_id = f.scope_id
        AND newer.sender = f.sender AND newer.first_heard_at > f.first_heard_at
        AND (newer.last_sent_at < i.sent_at) IS NOT TRUE)"""
"""Neither below the highest folded number nor of a process that another one followed: by the rule of the fold
(`numbered`) such a report is late and says nothing about now."""


@dataclass(frozen=True, eq=False, slots=True)
class RanksNow:
    """The newest beat of each rank that was ever heard, ranks rising.

    step: int64, -1 = not in a step yet. phase: the lower-case words. phase_age_s: float32, when the beat left. heard_at:
    float64 unix s by our clock. exited: rank → the fact of its exit.
    """

    ranks: NDArray[np.int32]
    step: NDArray[np.int64]
    phase: list[str]
    phase_age_s: NDArray[np.float32]
    heard_at: NDArray[np.float64]
    exited: dict[int, FactRow]


def ranks_now(attempt_id: int, now: datetime) -> RanksNow:
    """Return what an attempt's ranks said last, up to `now`; it never waits for the fold."""
    beats = np.concatenate([_folded(attempt_id), *_waiting(attempt_id)])
    size = attempt_by_id(attempt_id).world_size or settings.PACELINE_LIMITS["ranks_per_attempt"]
    beats = beats[(beats["heard"] <= now.timestamp() + 1.0) & (beats["rank"] < size)]  # what waits was not checked yet
    order = np.lexsort((beats["step"], beats["heard"], beats["rank"]))
    beats = beats[order]
    newest = beats[np.append(beats["rank"][1:] != beats["rank"][:-1], True)] if len(beats) else beats
    return RanksNow(
        ranks=newest["rank"].astype(np.int32),
        step=newest["step"].astype(np.int64),
        phase=[Phase(value).word for value in newest["phase"].tolist()],
        phase_age_s=newest["age_s"].astype(np.float32),
        heard_at=newest["heard"].astype(np.float64),
        exited={_rank(fact): fact for fact in facts_of(attempt_id, kinds=("exit",)) if 0 <= _rank(fact) < size},
    )


def _rank(fact: FactRow) -> int:
    return -1 if fact.rank is None else fact.rank


def _folded(attempt_id: int) -> Beats:
    with cursor() as c:
        c.execute(
            "SELECT beats FROM telemetry_folded WHERE scope_kind = %s AND scope_id = %s AND beats <> ''",
            (ScopeKind.ATTEMPT.value, attempt_id),
        )
        return np.frombuffer(b"".join(bytes(beats) for (beats,) in c), BEAT)


def _waiting(attempt_id: int) -> list[Beats]:
    with cursor() as c:
        c.execute(_WAITING, (OwnerKind.ATTEMPT.value, attempt_id, MOST_WAITING, ScopeKind.ATTEMPT.value, attempt_id))
        return [beats_raw(bytes(raw), received.timestamp()) for raw, received in c]
