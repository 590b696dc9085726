"""REST doors of what is known now: what ranks do, and what of reports was not taken over."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.common.access import READ
from apps.common.api import Door, cursor_int, cursor_pair, limit_read, page_answer
from apps.common.clock import now, rfc3339
from apps.fleet.selectors import nodes_by_id
from apps.runs.selectors import AttemptRow, PlacementRow, attempt_by_code, placement_of, run_by_id
from apps.telemetry.choices import Reason, ScopeKind
from apps.telemetry.selectors.facts import RefusalRow, refusals_of
from apps.telemetry.selectors.ranks import RanksNow, ranks_now


class AttemptRanks(Door):
    """What the ranks of an attempt do now."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="attempts_ranks", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt: str) -> Response:
        row = attempt_of(self, attempt)
        after = cursor_int(request)
        limit, moment = limit_read(request), now()
        found, placement = ranks_now(row.id, moment), placement_of(row.id)
        ranks = _ranks(row, found, placement, after=-1 if after is None else after)
        shown = ranks[:limit]
        answers = _answers(shown, found, placement, moment=moment)
        return page_answer(answers, following=shown[-1] if len(ranks) > limit else None)


class AttemptRefusals(Door):
    """What of an attempt's reports was not taken over, by sender and reason."""

    scopes = {"GET": READ}

    @extend_schema(operation_id="attempts_refusals", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, attempt: str) -> Response:
        row = attempt_of(self, attempt)
        limit = limit_read(request)
        rows = refusals_of(ScopeKind.ATTEMPT, row.id, after=cursor_pair(request), limit=limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        following = None if last is None else [last.sender, last.reason]
        return page_answer([refusal_answer(refusal) for refusal in rows[:limit]], following=following)


def attempt_of(door: Door, code: str) -> AttemptRow:
    """Return the attempt that an address names, if the caller may see it."""
    row = attempt_by_code(code)
    door.check_cluster(run_by_id(row.run_id).cluster_id)
    return row


def refusal_answer(row: RefusalRow) -> dict[str, Any]:
    """Return a refusal as an answer."""
    return {
        "sender": row.sender,
        "reason": row.reason,
        "message": Reason(row.reason).label,
        "count": row.count,
        "sample": row.sample,
        "first_at": rfc3339(row.first_at),
        "last_at": rfc3339(row.last_at),
    }


def _ranks(row: AttemptRow, found: RanksNow, placement: PlacementRow | None, *, after: int) -> list[int]:
    """Every rank there is or was heard: a rank that never said a word is shown as such."""
    size = row.world_size or 0
    known = {*range(size), *found.ranks.tolist(), *(range(len(placement.nodes)) if placement else ())}
    return sorted(rank for rank in known if rank > after)


def _answers(
    ranks: list[int], found: RanksNow, placement: PlacementRow | None, *, moment: datetime
) -> list[dict[str, Any]]:
    place = {rank: position for position, rank in enumerate(found.ranks.tolist())}
    nodes = (
        nodes_by_id({int(placement.nodes[rank]) for rank in ranks if rank < len(placement.nodes)}) if placement else {}
    )
    answers = []
    for rank in ranks:
        node_id = int(placement.nodes[rank]) if placement is not None and rank < len(placement.nodes) else 0
        answers.append(
            {
                "rank": rank,
                "node": nodes[node_id].name if node_id in nodes else None,
                "gpu": placement.gpus.get(str(rank)) if placement is not None else None,
                "local_rank": _known(placement.local_ranks, rank) if placement is not None else None,
                "stage": _known(placement.stages, rank) if placement is not None else None,
                **_beat(found, place.get(rank), moment=moment),
                "exit": _exit(found, rank),
            }
        )
    return answers


def _known(values: np.ndarray, rank: int) -> int | None:
    return int(values[rank]) if rank < len(values) and values[rank] >= 0 else None


def _beat(found: RanksNow, position: int | None, *, moment: datetime) -> dict[str, Any]:
    if position is None:
        return {"step": None, "phase": None, "phase_age_s": None, "beat_at": None, "beat_age_s": None}
    heard_s = float(found.heard_at[position])
    age_s = max(0.0, moment.timestamp() - heard_s)
    step = int(found.step[position])
    return {
        "step": step if step >= 0 else None,
        "phase": found.phase[position],
        # The age when the beat left, and the time since: if nothing changed, it has lasted so long by now.
        "phase_age_s": round(float(found.phase_age_s[position]) + age_s, 3),
        "beat_at": rfc3339(datetime.fromtimestamp(heard_s, UTC)),
        "beat_age_s": round(age_s, 3),
    }


def _exit(found: RanksNow, rank: int) -> dict[str, Any] | None:
    fact = found.exited.get(rank)
    if fact is None:
        return None
    return {"at": rfc3339(fact.happened_at), "code": fact.code, "signal": fact.signal, "text": fact.text}
