"""Findings to make incidents from."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from apps.engine.detection import (
    Certainty,
    Class,
    CloseReason,
    Coverage,
    Evidence,
    Level,
    Proposal,
    ProposalKind,
    Subject,
    SubjectKind,
    Verdict,
)


def verdict(cause: str = "hang", *, node: str | None = "trn001", rank: int | None = 3, **more: Any) -> Verdict:
    """A confirmed, critical verdict about a rank of a node, or about the run if `node` is None."""
    kind = SubjectKind.RUN if node is None else SubjectKind.RANK if rank is not None else SubjectKind.NODE
    subject = Subject(kind, rank=rank if node else None, node=node)
    made = Verdict(
        cause=cause,
        class_=Class.COORDINATION,
        level=Level.CRITICAL,
        certainty=Certainty.CONFIRMED,
        subject=subject,
        score=2.0,
        score_meaning="times its limit",
        verdict=f"{cause} on {node or 'the run'}",
        why="because of numbers",
        next="exclude it",
        coverage=Coverage(8, 8),
        since_step=100,
        found_step=110,
        evidence=(Evidence("age", 12.0, "s", 4.0),),
        proposal=Proposal(ProposalKind.EXCLUDE_NODE, node) if node else Proposal(),
    )
    return replace(made, **more)


@pytest.fixture
def find(attempt: Any, now: datetime) -> Callable[..., Any]:
    """Let a detector find something: `find(verdict("hang"), at=later(3))` gives the finding, absorbed."""
    from apps.diagnosis.services.findings import verdict_take
    from apps.incidents.services import findings_absorb
    from apps.journal.services import recording

    def make(said: Verdict, *, at: datetime | None = None, absorb: bool = True, attempt_id: int | None = None) -> Any:
        moment = at or now
        if said.began_at is None:
            said = replace(said, began_at=moment.timestamp())
        with recording(now=moment) as log:
            row = verdict_take(
                said, run_id=attempt.run_id, attempt_id=attempt_id or attempt.id, late=False, log=log, now=moment
            )
        if absorb:
            findings_absorb(now=moment)
        return row

    return make


def over(said: Verdict) -> Verdict:
    """The same verdict, recovered."""
    return replace(said, closed=CloseReason.RECOVERED)
