"""Chains of attempts: who began each, what came of it, how long the run stood, and whether trying again makes sense.

Attempts are counted here from their starts and ends, never from a rank's own counter: each agent counts only the
restarts it caused itself (case 24 of public reports).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol, TypeVar

from apps.engine.checks import at_least, share
from apps.engine.errors import ArgumentInvalid
from apps.engine.estimates.price import Spread, spread_of

FINISHED = "FINISHED"
FAILED = frozenset({"CRASHED", "HUNG", "NODE_FAILURE", "UNKNOWN"})
"""Ends after which something tries again by itself; UNKNOWN is among them, because a loop is often cut off unseen."""

PROGRESS_STEPS = 10
"""So many steps past all that was reached before are progress. Source: ours; a program that reads its input and makes a
few steps before the same fault has not got anywhere."""

BISECTIONS = 60
"""Halvings of 0..1 until a bound is exact to what a float holds."""


class Try(Protocol):
    """An attempt as a chain needs it. Times are seconds since 1970 UTC of one clock, None = not yet, or not known.

    `outcome`: the word for how it ended, "" while it is open. `nodes`: what it ran on as far as it was told.
    `message`: what several of its ranks said in the same words before it could start, or its program said last, "" without.
    `blamed`: the node that is said to have stopped it, "" without.
    """

    @property
    def number(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def first_step_at(self) -> float | None: ...
    @property
    def ended_at(self) -> float | None: ...
    @property
    def first_step(self) -> int | None: ...
    @property
    def last_step(self) -> int | None: ...
    @property
    def resumed_from_step(self) -> int | None: ...
    @property
    def outcome(self) -> str: ...
    @property
    def nodes(self) -> Sequence[str]: ...
    @property
    def message(self) -> str: ...
    @property
    def blamed(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Link:
    """One attempt in its chain; None = not known, or not yet.

    interval_s: from the start of the one before to its own. downtime_s: from the end of the one before to its first step.
    gained_steps: steps past all that the run had reached before it.
    """

    number: int
    interval_s: float | None
    downtime_s: float | None
    lasted_s: float | None
    gained_steps: int | None


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `of`, as a share 0..1 with the bounds of its interval; None where there is nothing to count."""

    count: int
    of: int
    share: float | None
    low: float | None
    high: float | None


class Next(StrEnum):
    """What trying again calls for: it may (RETRY), not yet (WAIT), or a person has to decide (ASK)."""

    RETRY = "RETRY"
    WAIT = "WAIT"
    ASK = "ASK"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to try again, not before when (seconds since 1970 UTC), and why."""

    next: Next
    not_before: float | None
    why: str


T = TypeVar("T", bound=Try)


def chains_cut(tries: Sequence[T]) -> list[list[T]]:
    """Return a run's attempts as chains, oldest first: a chain goes on until an attempt finishes.

    tries: the run's attempts by number. Source: figures §6 (12 chains of 73 attempts, 4 of which ended in success).
    """
    chains: list[list[T]] = []
    for before, one in zip([None, *tries], tries, strict=False):
        if before is None or before.outcome == FINISHED:
            chains.append([])
        chains[-1].append(one)
    return chains


def links_of(chain: Sequence[Try]) -> list[Link]:
    """Return each attempt's place in time and what it gained, in the chain's order. Cost: O(n).

    Source: ours; downtime as the second article counts it, from the end to the next first step.
    """
    links, reached = [], None
    for before, one in zip([None, *chain], chain, strict=False):
        gained, reached = _gained(one, reached)
        links.append(
            Link(
                number=one.number,
                interval_s=None if before is None else one.started_at - before.started_at,
                downtime_s=_between(before.ended_at if before is not None else None, one.first_step_at),
                lasted_s=_between(one.started_at, one.ended_at),
                gained_steps=gained,
            )
        )
    return links


def intervals_of(chain: Sequence[Try]) -> Spread | None:
    """Return the time from one start to the next, seconds; None for a single attempt."""
    return spread_of([later.started_at - earlier.started_at for earlier, later in pairwise(chain)])


def nodes_in_common(tries: Sequence[Try]) -> tuple[str, ...]:
    """Return the nodes, by name, that all these attempts had of which any is known; none of fewer than two attempts."""
    told = [set(one.nodes) for one in tries if one.nodes]
    return tuple(sorted(set.intersection(*told))) if len(told) > 1 else ()


def suspect_node(tries: Sequence[Try]) -> str | None:
    """Return the one node that failed attempts have in common while their others differ, None if there is no such node.

    All attempts must have told their nodes: what is not known clears nobody and blames nobody.

    Source: case 19 of public reports (five attempts of 12 s, all with one node, the others changing).
    """
    common = nodes_in_common(tries)
    others = [set(one.nodes) - set(common) for one in tries]
    differ = all(others) and len({frozenset(names) for names in others}) == len(others)
    told = all(one.nodes for one in tries)
    return common[0] if len(common) == 1 and told and differ else None


def blamed_node(tries: Sequence[Try]) -> str | None:
    """Return the node that is said to have stopped each of these attempts, None if it was not one and the same."""
    names = {one.blamed for one in tries}
    return next(iter(names)) or None if len(names) == 1 else None


def fruitless(chain: Sequence[T], *, quick_s: float) -> list[T]:
    """Return the newest failed attempts in a row that got nowhere, oldest first; an open one at the end is left out.

    An attempt got nowhere if it failed without a step, or within `quick_s` seconds and without PROGRESS_STEPS new ones.
    Cost: O(n).
    """
    ended = [one for one in chain if one.outcome]
    reached: int | None = None
    row: list[T] = []
    for one in ended:
        gained, reached = _gained(one, reached)
        lasted = _between(one.started_at, one.ended_at)
        short = one.first_step is None or (lasted is not None and lasted <= quick_s)
        nowhere = one.outcome in FAILED and short and (gained or 0) < PROGRESS_STEPS
        row = [*row, one] if nowhere else []
    return row


def goes_on(chain: Sequence[Try]) -> bool:
    """Return whether the newest attempt is open and got past all that was reached before. Cost: O(n)."""
    return not chain[-1].outcome and (links_of(chain)[-1].gained_steps or 0) >= PROGRESS_STEPS


def identical(one: Try, other: Try) -> bool:
    """Return whether two attempts failed alike: the same end, as far (a step or none), and no different words."""
    said = {one.message, other.message} - {""}
    return one.outcome == other.outcome and (one.first_step is None) == (other.first_step is None) and len(said) < 2


def retry_decision(chain: Sequence[Try], *, now: float, quick_s: float, most: int, backoff_s: float) -> Decision:
    """Return whether a failed run may be tried again by itself.

    chain: the run's newest chain, oldest first. now: seconds since 1970 UTC. quick_s: see `fruitless`. most: attempts in
    a row that may get nowhere. backoff_s: from the start of the last attempt to the next one.

    Never what cannot start, never after two identical quick failures. Cost: O(n).
    Source: DESIGN §6; cases 19, 25 and 27; the interval is figures §6 (median 11 min, IQR 10-11).
    """
    # What failed before an attempt that made its way says nothing of that one.
    row = [] if chain and goes_on(chain) else fruitless(chain, quick_s=quick_s)
    if row and row[-1].message:
        return Decision(Next.ASK, None, f"it cannot start: “{row[-1].message}”")
    if len(row) > 1 and identical(row[-2], row[-1]):
        return Decision(Next.ASK, None, f"attempts {row[-2].number} and {row[-1].number} failed alike and at once")
    if len(row) >= most:
        return Decision(Next.ASK, None, f"{len(row)} attempts in a row got nowhere; the limit is {most}")
    at = chain[-1].started_at + backoff_s if row else now
    if now < at:
        return Decision(Next.WAIT, at, f"attempt {row[-1].number} got nowhere; the next one waits its turn")
    return Decision(Next.RETRY, at, "nothing speaks against it")


def success_of(chains: Sequence[Sequence[Try]], *, level: float = 0.95) -> Share:
    """Return how many chains that are over ended in success, with the Clopper-Pearson interval.

    Left out: a chain whose newest attempt is open, and a single attempt: nothing was tried again.
    """
    over = [chain for chain in chains if len(chain) > 1 and chain[-1].outcome]
    count = sum(chain[-1].outcome == FINISHED for chain in over)
    if not over:
        return Share(0, 0, None, None, None)
    low, high = clopper_pearson(count, len(over), level=level)
    return Share(count, len(over), count / len(over), low, high)


def clopper_pearson(count: int, of: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the exact bounds, 0..1, of a share of which `count` of `of` were seen.

    level: chance, 0..1, that such an interval holds the true share, at least.

    Found by halving on the binomial tail itself, which needs no library. Cost: O(of).
    Raises ArgumentInvalid: count is not in 0..of, or level not in 0..1.
    Source: Clopper and Pearson 1934; figures §0.7: 4 of 12 chains, 9.9-65.1 %; 4 of 73 attempts are 5.5 %.

    >>> [round(bound, 3) for bound in clopper_pearson(4, 12)]
    [0.099, 0.651]
    >>> clopper_pearson(0, 3)[0], clopper_pearson(3, 3)[1]
    (0.0, 1.0)
    """
    at_least("of", of, 1)
    if not 0 <= count <= of:
        raise ArgumentInvalid("count must be from 0 to of.", count=count, of=of)
    tail = (1 - share("level", level)) / 2
    low = 0.0 if count == 0 else _rises_past(tail, lambda p: 1 - _at_most(count - 1, of, p))
    high = 1.0 if count == of else _rises_past(1 - tail, lambda p: 1 - _at_most(count, of, p))
    return low, high


def _rises_past(aim: float, chance: Callable[[float], float]) -> float:
    """Return the p in 0..1 at which a rising chance reaches `aim`."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < aim else (low, middle)
    return (low + high) / 2


def _at_most(count: int, of: int, p: float) -> float:
    """Return the chance of at most `count` of `of`, each with chance 0 < p < 1."""
    log_p, log_q, log_n = math.log(p), math.log1p(-p), math.lgamma(of + 1)
    terms = (
        log_n - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * log_p + (of - k) * log_q for k in range(count + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def _gained(one: Try, reached: int | None) -> tuple[int | None, int | None]:
    """Return the steps an attempt made past `reached` (None = the first attempt), and what is reached after it."""
    if one.last_step is None or one.first_step is None:
        return None, reached
    from_step = one.first_step - 1 if reached is None else reached
    return max(0, one.last_step - from_step), max(one.last_step, from_step)


def _between(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None or later < earlier else later - earlier
