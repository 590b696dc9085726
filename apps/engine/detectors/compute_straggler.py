"""One rank or node computes slower than its peers, step after step, and everybody waits for it.

Compared is own compute time without waiting, inside one pipeline stage. A whole stage that is slow is the partition's
doing, a slowest rank that moves is the data's; neither is named here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    Proposal,
    ProposalKind,
    State,
    Subject,
    SubjectKind,
    Trigger,
    Undecided,
    Verdict,
    Window,
    ranks_in_words,
)
from apps.engine.detectors._slowness import RECENT, SLOW_MEAN, Column, Rule, Slowness, column_of
from apps.engine.detectors._words import in_words, plural

CAUSE = "compute_straggler"

RATIO = Limit(
    "straggler_ratio",
    1.06,
    "×",
    "A step is bad from here on: below the 10 % that must be found, by two spreads of a run with cv 2 %, and above the "
    "few percent by which equal GPUs differ.",
    "ours, from DESIGN §9 (fail-slow ≥ 10 % at cv ≤ 2 % within 10 steps); figures §4",
    least=1.01,
    most=100.0,
)
NOISES = Limit(
    "straggler_noises",
    2.25,
    "× step-to-step noise",
    "In a noisy run the threshold rises with the noise: one healthy step in 80 is above, six of eight together never.",
    "ours; 28·0.0122^6 ≈ 1e-10 a rank and step",
    least=1.0,
    most=1000.0,
)
BAD = Limit(
    "straggler_bad", 6, "steps", "Bad steps of the last eight that open a finding.", "ours, k of n", least=1, most=8
)
LASTING = Limit(
    "straggler_lasting_ratio",
    1.045,
    "×",
    "A lag too small for single steps still holds the run back when it lasts: 5 % of one node of 48 took days to find.",
    "ours, after the BLOOM chronicle 2022-04-28 (case 46)",
    least=1.01,
    most=100.0,
)

OF = 8
"""Columns the first count looks at: eight leave two for the ten steps in which a fail-slow must be found."""
CONFIRM_BAD, CONFIRM_OF = 16, 20
"""Bad columns of the last 20 that confirm. Most slowdowns end by themselves (figures §4), so acting waits longer."""
RECOVER_BAD, RECOVER_OF = 2, 16
"""A finding closes when at most this many of the last 16 columns were bad; a single spike must not reopen it."""
LASTING_COLUMNS, LASTING_SIGMAS = 48, 6.0
"""Columns before a lasting lag is believed, and how many standard errors of the running mean it must be."""
LASTING_CONFIRM = 150
"""Columns a lasting lag must have been open before it is confirmed."""
PARTITION_RATIO = 1.10
"""A stage slower than the others by this much is called the partition. Source: figures §5, its rule for STAGE."""
CRITICAL_SHARE = 0.10
"""Share of each step lost to it from which it is critical. Source: figures §5, straggling = S ≥ 1.1."""


def evaluate(window: Window, state: State) -> tuple[State, tuple[Answer, ...]]:
    """Return the state after the window's columns, and the stragglers open or closed in them (see `Detector`).

    Cost: O(columns · ranks · log ranks).
    Source: the worker ratio inside its own stage, figures §5 (it gives 2.35 for the one slow worker of the AR trace, as
    printed there); k of n, the noise and the lasting lag are ours.
    """
    memory = Slowness(window.attempt.world_size, state.values, state.arrays)
    rule = Rule(RATIO.of(window.limits), NOISES.of(window.limits), int(BAD.of(window.limits)), OF)
    closed: list[Verdict] = []
    if "compute_s" in window.columns.values:
        for at in np.flatnonzero(~window.columns.skip):
            column = _column(window, int(at))
            memory.take(column, window.placement.stage, rule)
            _costs_take(memory, column)
            closed += _recovered(memory, window, rule)
            closed += _opened(memory, window, column, rule)
    verdicts = tuple(_verdict(memory, window, rule, entry) for entry in memory.open)
    answers: tuple[Answer, ...] = (*closed, *verdicts)
    if not verdicts:
        answers = (*answers, _nothing(memory, window))
    return State(CAUSE, state.version, memory.values(), memory.arrays()), answers


def _column(window: Window, at: int) -> Column:
    columns = window.columns
    return column_of(int(columns.steps[at]), float(columns.received_at[at]), columns.values, at, window.placement.stage)


def _costs_take(memory: Slowness, column: Column) -> None:
    for entry in memory.open:
        _cost_take(entry, column)


def _cost_take(entry: dict[str, Any], column: Column) -> None:
    """Note what the entry's ranks added to this step: the slowest of all minus the slowest of the others."""
    own = np.isin(np.arange(len(column.work_s)), entry["ranks"])
    if not np.isfinite(column.work_s[own]).any() or not np.isfinite(column.work_s[~own]).any():
        return
    slowest, rest = float(np.nanmax(column.work_s)), float(np.nanmax(column.work_s[~own]))
    entry["costs"] = [*entry["costs"], max(slowest - rest, 0.0)][-RECENT:]
    entry["totals"] = [*entry["totals"], slowest][-RECENT:]
    # Once critical it stays so: a level that flaps around its limit is news without news.
    entry["critical"] = bool(
        entry["critical"] or np.median(entry["costs"]) >= CRITICAL_SHARE * np.median(entry["totals"])
    )
    if column.wait_s is not None and np.isfinite(column.wait_s[own]).any() and np.isfinite(column.wait_s[~own]).any():
        entry["waits"] = [*entry["waits"], float(np.nanmedian(column.wait_s[own]))][-RECENT:]
        entry["others_wait"] = [*entry["others_wait"], float(np.nanmedian(column.wait_s[~own]))][-RECENT:]


def _opened(memory: Slowness, window: Window, column: Column, rule: Rule) -> list[Verdict]:
    """Open an entry for each rank that became slow, one for a node where all ranks did; return what that closed."""
    everyone = np.arange(window.attempt.world_size)
    ready = memory.seen >= OF
    burst = ready & (memory.count(everyone, OF) >= rule.bad)
    slow = burst | _lasting(memory, window)
    known = {rank for entry in memory.open for rank in entry["ranks"]}
    fresh = [int(rank) for rank in np.flatnonzero(slow) if int(rank) not in known]
    closed: list[Verdict] = []
    for rank in fresh:
        if any(rank in entry["ranks"] for entry in memory.open):
            continue
        ranks = _whole_node(memory, window, rank, rule) or [rank]
        kind = SubjectKind.NODE if len(ranks) > 1 else SubjectKind.RANK
        merged = [entry for entry in memory.open if set(entry["ranks"]) <= set(ranks)]
        closed += [_verdict(memory, window, rule, entry, CloseReason.MERGED) for entry in merged]
        memory.open = [entry for entry in memory.open if entry not in merged]
        entry = _entry(memory, column, kind, ranks, lasting=not burst[rank])
        _cost_take(entry, column)
        memory.open.append(entry)
        for member in ranks:
            memory.watched.setdefault(member, [])
    return closed


def _lasting(memory: Slowness, window: Window) -> NDArray[np.bool_]:
    error = (memory.noise or 0.0) * np.sqrt(1 / (2 * SLOW_MEAN - 1))
    least = max(LASTING.of(window.limits) - 1, LASTING_SIGMAS * error)
    lasting: NDArray[np.bool_] = (memory.seen >= LASTING_COLUMNS) & (memory.mean >= least)
    return lasting


def _whole_node(memory: Slowness, window: Window, rank: int, rule: Rule) -> list[int] | None:
    """Return the ranks of the node if all of them lean the same way as this one, else None."""
    index = int(window.placement.node[rank])
    if index < 0:
        return None
    mates = window.placement.ranks_on(index)
    leaning = (memory.count(mates, OF) >= rule.bad // 2) & (memory.seen[mates] >= OF)
    return [int(mate) for mate in mates] if len(mates) > 1 and leaning.all() else None


def _entry(memory: Slowness, column: Column, kind: SubjectKind, ranks: list[int], *, lasting: bool) -> dict[str, Any]:
    bad = memory.bad_steps(ranks[0], OF) or [(column.step, None)]
    first = min((memory.bad_steps(rank, OF) or bad)[0] for rank in ranks)
    since, at = memory.steps[0] if lasting else first
    return {
        "kind": str(kind),
        "ranks": ranks,
        "since": int(since or 0),
        "began_at": at,
        "found": column.step,
        "columns": memory.columns,
        "lasting": lasting,
        "confirmed": False,
        "critical": False,
        "costs": [],
        "totals": [],
        "waits": [],
        "others_wait": [],
    }


def _recovered(memory: Slowness, window: Window, rule: Rule) -> list[Verdict]:
    """Close what is no longer slow, confirm what has been long enough; return the closed ones."""
    closed, kept = [], []
    for entry in memory.open:
        ranks = np.array(entry["ranks"])
        quiet = (memory.count(ranks, RECOVER_OF) <= RECOVER_BAD) & (memory.columns - entry["columns"] >= RECOVER_OF)
        if entry["lasting"]:
            quiet &= memory.mean[ranks] < (LASTING.of(window.limits) - 1) * 2 / 3
        if quiet.all():
            closed.append(_verdict(memory, window, rule, entry, CloseReason.RECOVERED))
            memory.settle(ranks, OF)
            continue
        steady = np.median(memory.count(ranks, CONFIRM_OF)) >= CONFIRM_BAD
        long = entry["lasting"] and memory.columns - entry["columns"] >= LASTING_CONFIRM
        entry["confirmed"] = bool(entry["confirmed"] or ((steady or long) and _peers(window, entry) >= 2))
        kept.append(entry)
    memory.open = kept
    return closed


def _peers(window: Window, entry: dict[str, Any]) -> int:
    """How many ranks outside the subject do the same work; with one alone, which of the two is odd is not sure."""
    stage, own = window.placement.stage, window.placement.stage[entry["ranks"]]
    return min(int((stage == s).sum()) - int((own == s).sum()) for s in np.unique(own))


def _verdict(
    memory: Slowness, window: Window, rule: Rule, entry: dict[str, Any], closed: CloseReason | None = None
) -> Verdict:
    ranks: list[int] = entry["ranks"]
    rows = np.array([row for rank in ranks for row in memory.watched.get(rank, [])]).reshape(-1, 3)
    few = len(rows) < 3
    ratio = 1 + float(np.median(memory.mean[ranks])) if few else float(np.median(rows[:, 0]))
    cost = float(np.median(entry["costs"])) if entry["costs"] else None
    certainty = Certainty.CONFIRMED if entry["confirmed"] else Certainty.SUSPECTED
    node = window.placement.node_name(ranks[0])
    still = entry["lasting"] or np.median(memory.count(np.array(ranks), OF)) >= rule.bad / 2
    act = entry["confirmed"] and still and node is not None and not closed
    kind = SubjectKind(entry["kind"])
    rank = ranks[0] if kind is SubjectKind.RANK else None
    gpu = window.placement.gpu(rank) if rank is not None else None
    bad = int(np.median(memory.count(np.array(ranks), CONFIRM_OF)))
    steps = sorted({step for r in ranks for step, _ in memory.bad_steps(r, CONFIRM_OF)})
    who = f"Rank {rank}" + (f" on {node}" if node else "") if rank is not None else f"{node} (all its ranks)"
    return Verdict(
        cause=CAUSE,
        class_=Class.COMPUTE,
        level=Level.CRITICAL if entry["confirmed"] and entry["critical"] else Level.WARNING,
        certainty=certainty,
        subject=Subject(kind, rank=rank, node=node, gpu=gpu),
        score=ratio,
        score_meaning="own compute time ÷ median of the ranks of the same stage, median over recent steps",
        verdict=_says(who, ratio, cost, closed),
        why=_why(rows, few, bad, min(memory.columns, CONFIRM_OF), ratio),
        next=_next(entry["confirmed"], node, closed),
        coverage=Coverage(int((memory.seen >= OF).sum()), window.attempt.world_size),
        since_step=entry["since"],
        found_step=entry["found"],
        began_at=entry["began_at"],
        evidence=_evidence(memory, window, rule, entry, rows, ratio, cost),
        proposal=Proposal(ProposalKind.EXCLUDE_NODE, node) if act else Proposal(),
        cells=(Cells("compute_s", tuple(ranks), tuple(steps)),),
        cost_s=cost,
        closed=closed,
    )


def _says(who: str, ratio: float, cost: float | None, closed: CloseReason | None) -> str:
    if closed is CloseReason.RECOVERED:
        return f"{who} keeps pace with its peers again."
    adds = "what it adds to a step is not measured yet" if cost is None else f"every step takes {in_words(cost)} longer"
    return f"{who} computes {ratio:.2f}× as long as its peers: {adds}."


def _why(rows: NDArray[Any], few: bool, bad: int, of: int, ratio: float) -> str:
    if few:
        return f"Its mean lag of {ratio - 1:.1%} is small but lasts."
    own, peers = float(np.median(rows[:, 1])), float(np.median(rows[:, 2]))
    return (
        f"Without waiting it computes for {in_words(own)} where the ranks of its stage take {in_words(peers)}, "
        f"and was slow in {bad} of its last {of} steps; the others wait for it."
    )


def _next(confirmed: bool, node: str | None, closed: CloseReason | None) -> str:
    if closed:
        return "Nothing to do; it keeps pace again." if closed is CloseReason.RECOVERED else "See the node's finding."
    if confirmed and node:
        return f"Exclude {node} and restart once the time lost outweighs a restart; look at its clocks and temperature."
    return f"Watch: it is confirmed after {CONFIRM_BAD} slow steps of {CONFIRM_OF}. Look at its clocks and temperature."


def _evidence(
    memory: Slowness,
    window: Window,
    rule: Rule,
    entry: dict[str, Any],
    rows: NDArray[Any],
    ratio: float,
    cost: float | None,
) -> tuple[Evidence, ...]:
    ranks = np.array(entry["ranks"])
    found = [Evidence("ratio to peers", ratio, "×", 1 + float(memory.threshold(rule)))]
    if len(rows):
        own, peers = float(np.median(rows[:, 1])), float(np.median(rows[:, 2]))
        found.append(Evidence("compute time", own, "s", peers))
    found.append(Evidence("slow steps", int(np.median(memory.count(ranks, CONFIRM_OF))), "", CONFIRM_OF))
    found.append(Evidence("noise from step to step", memory.noise or 0.0, "share"))
    if cost is not None:
        found.append(Evidence("added to each step", cost, "s"))
    if entry["waits"]:
        waits, others = float(np.median(entry["waits"])), float(np.median(entry["others_wait"]))
        found.append(Evidence("time in collectives", waits, "s", others))
    node = window.placement.node_name(int(ranks[0]))
    earlier = {past.attempt for past in window.attempts if past.cause == CAUSE and node and past.node == node}
    if earlier:
        found.append(Evidence("earlier attempts in which this node was slow", len(earlier)))
    return tuple(found)


def _nothing(memory: Slowness, window: Window) -> Undecided | Healthy:
    world = window.attempt.world_size
    seen = int((memory.seen >= OF).sum())
    have = (plural(memory.columns, "evidence step"), f"compute_s of {seen} of {plural(world, 'rank')}")
    if memory.columns < OF:
        lack = (f"{plural(OF - memory.columns, 'more evidence step')} with compute_s of two ranks of one stage",)
        return Undecided(CAUSE, have, lack, "Not enough steps yet to compare ranks.")
    if 2 * seen < world:
        return Undecided(
            CAUSE, have, (f"compute_s of {plural(world - seen, 'rank')}",), "Most ranks cannot be compared yet."
        )
    stages = [int(stage) for stage, ratio in memory.stages if ratio >= PARTITION_RATIO]
    if len(stages) >= BAD.default and len(set(stages)) == 1:
        ratio = float(np.median([ratio for _, ratio in memory.stages]))
        words = (
            f"Stage {stages[0]} takes {ratio:.2f}× as long as the others, all its ranks alike: the partition of layers."
        )
        return Undecided(CAUSE, have, ("a rank that is slow within its stage",), words)
    movers = [int(rank) for rank, _ in memory.worst if rank >= 0]
    if len(movers) >= BAD.default and len(set(movers)) >= len(movers) // 2:
        words = "The slowest rank is another one from step to step: the data, or pauses, not a machine."
        return Undecided(CAUSE, have, ("a rank that is slow step after step",), words)
    return Healthy(CAUSE, have, f"All {ranks_in_words([0]) if world == 1 else f'{seen} ranks'} keep pace.")


DETECTOR = Detector(
    cause=CAUSE,
    class_=Class.COMPUTE,
    title="Slow rank or node",
    trigger=Trigger.COLUMNS,
    needs=Needs(metrics=("compute_s",), useful=("gc_s", "tokens", "communication_s"), past=True),
    minimum=Minimum(ranks=2, columns=OF),
    delay=Delay(columns=10),
    false_alarm_p=1 / 24_000,
    limits=(RATIO, NOISES, BAD, LASTING),
    evaluate=evaluate,
)
