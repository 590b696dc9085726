"""Garbage collection stops single ranks for a moment, each by itself, and everybody waits for each of them.

It is the program's doing, never a machine's: nothing is proposed, the remedy is to collect on all ranks in one step.
"""

from typing import Any

import numpy as np

from apps.engine.detection import (
    Answer,
    Cells,
    Certainty,
    Class,
    CloseReason,
    Coverage,
    Delay,
    Detector,
    Evidence,
    Healthy,
    Level,
    Limit,
    Minimum,
    Needs,
    State,
    Subject,
    SubjectKind,
    Trigger,
    Undecided,
    Verdict,
    Window,
)
from apps.engine.detectors._culprit import victims_of
from apps.engine.detectors._pauses import AT, LONG, LOST, PAUSE, RECENT, STEP, TOGETHER, TOOK, Look, Pauses, row_of
from apps.engine.detectors._words import in_words, plural

CAUSE = "gc_pause"
METRICS = ("gc_s", "step_s", "compute_s")

SLOWDOWN = Limit(
    "gc_slowdown",
    1.03,
    "×",
    "From here on the pauses are told: below 3 % the published analysis does not take a slowdown apart either, and what "
    "an interpreter collects by itself in a healthy run is far less.",
    "figures §5: decomposition shown only if S ≥ 1.03",
    least=1.005,
    most=100.0,
)
CRITICAL = Limit(
    "gc_critical_slowdown",
    1.10,
    "×",
    "A run is called straggling from a tenth on.",
    "figures §5: straggling = S ≥ 1.1",
    least=1.01,
    most=100.0,
)

LEAST_COLUMNS = 16
"""Columns before anything is said: at one held-up step in four, sixteen hold the four that are asked for."""
LEAST_HITS, LEAST_HITS_LONG = 4, 8
"""Steps held up before it is a pattern: one long collection is an event, and it ends by itself."""
CONFIRM_HITS = 8
"""Held-up steps that confirm: the interpreter itself measured each of them, so repetition is all that is asked for."""
LONG_LEAST = 128
"""Columns before the long look counts, and those in which a finding of the long look must have calmed down."""
ONE_RANK = 0.9
"""Share of the loss from which it is one rank's. Source: ours; chance gives four pauses of 16 ranks to one at 0.02 %."""
EVERY_STEPS = 500
"""What the published remedy did. Source: figures §5, planned collection every 500 steps, +12.6 % at 128 DP ranks."""
MOST_CELLS = 32


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after the window's columns, and whether collections hold the run up (see `Detector`).

    Cost: O(columns · ranks).
    Source: figures §5 (garbage collection as a cause of stragglers, S, planned collection); counts are ours.
    """
    memory = Pauses(state.values, state.arrays)
    columns = window.columns
    closed: list[Verdict] = []
    if set(METRICS) <= set(columns.values):
        for at in np.flatnonzero(~columns.skip).tolist():
            row = row_of(int(columns.steps[at]), float(columns.received_at[at]), columns.values, at)
            if row is not None:
                memory.take(*row)
                closed += _judge(memory, window)
    answers: tuple[Answer, ...] = tuple(closed)
    answers += (_verdict(memory, window, memory.open),) if memory.open else (_nothing(memory, window),)
    return State(CAUSE, state.version, memory.values(), {"rows": memory.rows}), answers


def _judge(memory: Pauses, window: Window) -> list[Verdict]:
    """Open, confirm, hand over or close after one column; return what closed."""
    limit = SLOWDOWN.of(window.limits)
    entry = memory.open
    if entry is None:
        memory.open = _opened(memory, limit)
        return []
    quiet = memory.look(LONG_LEAST if entry["long"] else RECENT).slowdown < 1 + (limit - 1) / 2
    if quiet and memory.columns - entry["columns"] >= LEAST_COLUMNS:
        last = _verdict(memory, window, entry, CloseReason.RECOVERED)
        memory.open = None
        memory.settle()
        return [last]
    look = _look(memory, entry)
    # Once confirmed or critical it stays so: what flaps around a limit is news without news.
    entry["confirmed"] = bool(entry["confirmed"] or (len(look.hits) >= CONFIRM_HITS and look.slowdown >= limit))
    grave = look.slowdown >= CRITICAL.of(window.limits)
    entry["critical"] = bool(entry["critical"] or (entry["confirmed"] and grave))
    if entry["rank"] is not None and look.main_rank()[1] < ONE_RANK:
        merged = _verdict(memory, window, entry, CloseReason.MERGED)
        memory.open = {**entry, "rank": None}
        return [merged]
    return []


def _opened(memory: Pauses, limit: float) -> dict[str, Any] | None:
    looks = ((RECENT, LEAST_COLUMNS, LEAST_HITS), (LONG, LONG_LEAST, LEAST_HITS_LONG))
    for columns, least, least_hits in looks:
        look = memory.look(columns)
        hits = look.hits
        if len(look.rows) < least or len(hits) < least_hits or look.slowdown < limit:
            continue
        # A small collection of its own may have come before the pauses that are found.
        first = hits[hits[:, LOST] >= np.median(hits[:, LOST]) / 2][0]
        rank, share = look.main_rank()
        return {
            "rank": rank if share >= ONE_RANK else None,
            "long": columns == LONG,
            "since": int(first[STEP]),
            "began_at": float(first[AT]) if np.isfinite(first[AT]) else None,
            "found": int(look.rows[-1, STEP]),
            "columns": memory.columns,
            "confirmed": False,
            "critical": False,
        }
    return None


def _look(memory: Pauses, entry: dict[str, Any]) -> Look:
    return memory.look(LONG if entry["long"] else RECENT)


def _verdict(memory: Pauses, window: Window, entry: dict[str, Any], closed: CloseReason | None = None) -> Verdict:
    look = _look(memory, entry)
    world = window.attempt.world_size
    rank = entry["rank"] if world > 1 else None
    subject, who = Subject(SubjectKind.RUN), "Ranks"
    if rank is not None:
        node = window.placement.node_name(rank)
        subject = Subject(SubjectKind.RANK, rank=rank, node=node, gpu=window.placement.gpu(rank))
        who = f"Rank {rank} on {node}" if node else f"Rank {rank}"
    ranks, steps = look.ranks, [int(step) for step in look.hits[:, STEP]]
    return Verdict(
        cause=CAUSE,
        class_=Class.COORDINATION,
        level=Level.CRITICAL if entry["critical"] else Level.WARNING,
        certainty=Certainty.CONFIRMED if entry["confirmed"] else Certainty.SUSPECTED,
        subject=subject,
        score=look.slowdown,
        score_meaning="step time ÷ step time without garbage collection, over recent steps",
        verdict=_says(who, look, closed),
        why=_why(look, rank, world),
        next=_next(look, world, closed),
        coverage=Coverage(memory.heard, world),
        since_step=entry["since"],
        found_step=entry["found"],
        began_at=entry["began_at"],
        victims=victims_of([rank], world) if rank is not None else (),
        evidence=_evidence(look, window),
        cells=(Cells("gc_s", ranks[:MOST_CELLS], tuple(steps[-MOST_CELLS:])),) if steps else (),
        cost_s=look.lost_s,
        closed=closed,
    )


def _together(look: Look, world: int) -> bool:
    return bool(len(look.hits) and world > 1 and np.median(look.hits[:, TOGETHER]) > world / 2)


def _says(who: str, look: Look, closed: CloseReason | None) -> str:
    if closed is CloseReason.RECOVERED:
        return "Garbage collection no longer holds the run up."
    pause = "pauses" if who != "Ranks" else "pause"
    return f"{who} {pause} to collect garbage: a step takes {in_words(look.lost_s)} longer on average."


def _why(look: Look, rank: int | None, world: int) -> str:
    hits = look.hits
    if not len(hits):
        return f"None of the last {plural(len(look.rows), 'step')} was held up by a collection."
    held = f"Collections of {in_words(float(np.median(hits[:, PAUSE])))} held up {len(hits)} of the last {len(look.rows)} steps"
    if _together(look, world):
        return f"{held}; most ranks collect in the same step, so it is how often they do that costs time."
    if rank is not None or world == 1:
        return f"{held}, nearly all of them on one rank; its own compute time without them is not what is slow."
    return (
        f"{held}, on {plural(len(look.ranks), 'rank')} in turn: in each such step the others wait for one, and pauses that "
        "do not coincide add up."
    )


def _next(look: Look, world: int, closed: CloseReason | None) -> str:
    if closed:
        return "Nothing to do." if closed is CloseReason.RECOVERED else "See the finding about the run."
    if _together(look, world):
        return (
            f"Collect less often: every {EVERY_STEPS} steps was enough where it was published. No machine is at fault."
        )
    return (
        f"Collect by hand, on all ranks in the same step: gc.disable() at the start, then gc.collect() every {EVERY_STEPS} "
        "steps (published: 12.6 % faster at 128 data-parallel ranks). No machine is at fault: exclude none."
    )


def _evidence(look: Look, window: Window) -> tuple[Evidence, ...]:
    hits = look.hits
    took = float(look.rows[:, TOOK].sum())
    share = float(look.rows[:, LOST].sum()) / took if took else 0.0
    found = [
        Evidence("step time ÷ without collection", look.slowdown, "×", SLOWDOWN.of(window.limits)),
        Evidence("step time lost to collection", share, "share"),
        Evidence("added to each step", look.lost_s, "s"),
        Evidence("steps held up", len(hits), "", len(look.rows)),
    ]
    if len(hits):
        found += [
            Evidence("a pause", float(np.median(hits[:, PAUSE])), "s"),
            Evidence("ranks that paused", len(look.ranks), "", window.attempt.world_size),
            Evidence("ranks that paused in the same step", float(np.median(hits[:, TOGETHER])), "ranks"),
        ]
    return tuple(found)


def _nothing(memory: Pauses, window: Window) -> Undecided | Healthy:
    world = window.attempt.world_size
    have = (plural(memory.columns, "evidence step"), f"gc_s of {memory.heard} of {plural(world, 'rank')}")
    if memory.columns < LEAST_COLUMNS:
        lack = f"{plural(LEAST_COLUMNS - memory.columns, 'more evidence step')} with {', '.join(METRICS)} of half the ranks"
        return Undecided(CAUSE, have, (lack,), "Not enough steps with the time of collections yet.")
    share = 1 - 1 / memory.look(LONG).slowdown
    return Healthy(CAUSE, have, f"Garbage collection takes {share:.1%} of the step time.")


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.COORDINATION,
    title="Garbage collection pauses",
    trigger=Trigger.COLUMNS,
    needs=Needs(metrics=METRICS, useful=("communication_s",)),
    minimum=Minimum(ranks=1, columns=LEAST_COLUMNS),
    delay=Delay(columns=64),
    false_alarm_p=1 / 24_000,
    limits=(SLOWDOWN, CRITICAL),
    evaluate=evaluate,
)
