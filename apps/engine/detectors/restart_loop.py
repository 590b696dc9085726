"""Trying again does not help: attempts fail alike and at once, too many got nowhere, or it cannot start at all."""

from collections.abc import Sequence
from typing import Any

from apps.engine.detection import (
    Answer,
    Certainty,
    Class,
    CloseReason,
    Coverage,
    Delay,
    Detector,
    Evidence,
    Healthy,
    Launched,
    Level,
    Limit,
    Minimum,
    Needs,
    Proposal,
    ProposalKind,
    State,
    Subject,
    SubjectKind,
    Trigger,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors._words import in_words, plural
from apps.engine.estimates.retry_chains import (
    blamed_node,
    chains_cut,
    fruitless,
    goes_on,
    identical,
    intervals_of,
    nodes_in_common,
    suspect_node,
)

CAUSE = "restart_loop"

QUICK_S = Limit(
    "restart_quick_s",
    900.0,
    "s",
    "An attempt that fails within this time and gains no steps has got nowhere: a start alone takes 10 to 15 minutes of it.",
    "case 27 of public reports (10-15 min of start-up); ours",
    least=1.0,
    most=86_400.0,
)
MOST = Limit(
    "restart_limit",
    3.0,
    "attempts",
    "So many attempts in a row that got nowhere are a loop, whatever each of them died of.",
    "case 25 of public reports (backoffLimit 3); ours where nothing is stated",
    least=1.0,
    most=1000.0,
)
BACKOFF_S = Limit(
    "restart_backoff_s",
    630.0,
    "s",
    "From the start of an attempt that got nowhere to the next one: what is down often needs some minutes to come back.",
    "figures §6: a retry each 10-11 minutes",
    least=0.0,
    most=86_400.0,
)

MOST_NODES = 6
"""Nodes in common that a sentence names."""


NAMED_S = 10.0
"""So long after an attempt failed who stopped it may still come out; a node must not be cleared by it before."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return what is open, and whether the run's newest attempts show that a retry is in vain (see `Detector`).

    It opens after two identical quick failures, after `restart_limit` attempts that got nowhere, or after one that could
    not start in the words of several ranks or of its program. It is over once an attempt gains steps. One node in all failed attempts whose
    other nodes differ, or which is said to have stopped each of them, is the node's; everything else is the run's.
    Cost: O(attempts · nodes).
    Source: DESIGN §6; cases 19, 24, 25 and 27 of public reports.
    """
    if not window.chain:
        words = "No attempt of the run is known yet."
        return state, (Undecided(CAUSE, (), ("an attempt",), words),)
    chain = chains_cut(window.chain)[-1]
    row = _known(fruitless(chain, quick_s=QUICK_S.of(window.limits)), window.now)
    have = (plural(len(chain), "attempt"),)
    if not row or goes_on(chain):
        return _kept(None), (Healthy(CAUSE, have, "The newest attempt did not fail at once."),)
    loops = len(row) >= MOST.of(window.limits) or (len(row) > 1 and identical(row[-2], row[-1]))
    if not loops and not row[-1].message:
        return _kept(None), (Healthy(CAUSE, have, f"Attempt {row[-1].number} got nowhere; one failure is no loop."),)
    now = _verdict(window, chain, row, _node(row))
    known: dict[str, Any] | None = state.values.get("open")
    if known is None or known["key"] == now.subject.key:
        return _kept(now), (now,)
    before = _verdict(window, chain, row, known["node"], closed=CloseReason.MERGED)
    return _kept(now), (before, now)


def _kept(verdict: Verdict | None) -> State:
    open_now = None if verdict is None else {"key": verdict.subject.key, "node": verdict.subject.node}
    return State(CAUSE, DETECTOR.state_version, {"open": open_now} if open_now else {})


def _known(row: Sequence[Launched], now: float) -> Sequence[Launched]:
    """Return the attempts without the newest while it may still come out that the same node stopped it as those before."""
    newest = row[-1] if row else None
    if newest is None or newest.blamed or newest.message or newest.ended_at is None:
        return row
    return row[:-1] if now - newest.ended_at < NAMED_S and blamed_node(row[:-1]) else row


def _node(row: Sequence[Launched]) -> str | None:
    """Return the node that it is about, None if it is about the run."""
    return None if len(row) < 2 or row[-1].message else suspect_node(row) or blamed_node(row)


def _verdict(
    window: Window,
    chain: Sequence[Launched],
    row: Sequence[Launched],
    node: str | None,
    closed: CloseReason | None = None,
) -> Verdict:
    # What stopped each of them may still be the program's, at its place: only changing neighbours prove a machine's.
    proven = node is not None and node == suspect_node(row) and closed is None
    return Verdict(
        cause=CAUSE,
        class_=Class.RECOVERY,
        level=Level.CRITICAL,
        certainty=Certainty.CONFIRMED,
        subject=Subject(SubjectKind.NODE, node=node) if node else Subject(SubjectKind.RUN),
        score=float(len(row)),
        score_meaning="attempts in a row that got nowhere",
        verdict=_says(row, node),
        why=_why(row, node),
        next=_next(row, node),
        coverage=Coverage(sum(bool(one.nodes) for one in row), len(row)),
        since_step=None,
        found_step=row[-1].last_step,
        began_at=row[0].started_at,
        evidence=_evidence(window, chain, row),
        proposal=Proposal(ProposalKind.EXCLUDE_NODE, node) if proven else Proposal(),
        closed=closed,
    )


def _says(row: Sequence[Launched], node: str | None) -> str:
    if row[-1].message:
        return f"It cannot start: {row[-1].said_by} said “{row[-1].message}” before the first step."
    began = f"{plural(len(row), 'attempt')} in a row got nowhere"
    if not node:
        return f"{began}."
    return (
        f"{began}, all of them with {node}."
        if node == suspect_node(row)
        else f"{began}; each time {node} was first to fail."
    )


def _why(row: Sequence[Launched], node: str | None) -> str:
    if row[-1].message:
        return "A wrong path, right, import or argument is the same on every machine and at every try."
    how = "They failed alike" if len(row) > 1 and identical(row[-2], row[-1]) else "They failed in different ways"
    lasted = [one.ended_at - one.started_at for one in row if one.ended_at is not None]
    took = f", within {in_words(max(lasted))} each" if lasted else ""
    common = nodes_in_common(row)
    if node and node != suspect_node(row):
        return f"{how}{took}. What failed first was on {node} each time; the other nodes were in all of them, too."
    if node:
        return f"{how}{took}. {node} is in all of them; their other nodes differ."
    if not common:
        return f"{how}{took}. No node is known to be in all of them."
    named = ", ".join(common[:MOST_NODES]) + (
        f" and {len(common) - MOST_NODES} more" if len(common) > MOST_NODES else ""
    )
    return f"{how}{took}. In all of them: {named}; that singles out no node."


def _next(row: Sequence[Launched], node: str | None) -> str:
    if row[-1].message:
        return "Mend what it says, then restart. Nothing tries again by itself."
    if node and node != suspect_node(row):
        return f"Exclude {node} and restart: if it fails alike elsewhere, it is the program. Nothing tries again by itself."
    if node:
        return f"Exclude {node} and restart. Nothing tries again by itself."
    return "Read the last lines of the first rank to die in each attempt before it is tried again."


def _evidence(window: Window, chain: Sequence[Launched], row: Sequence[Launched]) -> tuple[Evidence, ...]:
    found = [
        Evidence("attempts in a row that got nowhere", len(row), "", MOST.of(window.limits)),
        Evidence("attempts in the chain", len(chain)),
        Evidence("ended as", row[-1].outcome),
        Evidence("made a step", sum(one.first_step is not None for one in row), "", len(row)),
    ]
    spread = intervals_of(row)
    if spread is not None:
        found.append(Evidence("from start to start, median", spread.median_s, "s", BACKOFF_S.of(window.limits)))
    common = nodes_in_common(row)
    if common:
        found.append(Evidence("nodes in all of them", ", ".join(common[:MOST_NODES]), "", len(common)))
    if row[-1].message:
        found.append(Evidence("said before the first step", row[-1].message))
    return tuple(found)


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.RECOVERY,
    title="Restarting in vain",
    trigger=Trigger.CLOCK,
    needs=Needs(exits=True, chain=True),
    minimum=Minimum(ranks=0),
    delay=Delay(seconds=10.0),
    false_alarm_p=0.0,
    limits=(QUICK_S, MOST, BACKOFF_S),
    evaluate=evaluate,
)
