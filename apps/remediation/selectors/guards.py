"""What must hold before something irreversible is done, with the figures that decide it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.fleet.selectors import nodes_excluded
from apps.remediation.models import Guard
from apps.remediation.selectors.pool import PoolNode
from apps.runs.limits import limit_value
from apps.runs.selectors import RunRow, nodes_of_run, runs_by_id

WINDOW_S = 24 * 3600
EXCLUSIONS_PER_WINDOW = 6
"""More nodes than this in a day is a shared cause, or a detector gone wrong: people decide (case 17)."""

SHARE_OF_RUN = 0.10
"""Of the nodes a run can use, at most this share is out at once; always at least one."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """A cluster's limits."""

    window_s: int = WINDOW_S
    exclusions_per_window: int = EXCLUSIONS_PER_WINDOW
    share_of_run: float = SHARE_OF_RUN
    updated_by: str = ""
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class GuardRow:
    """One condition: whether it holds, said with its figures. `have` is how it stands after the action, `most` the limit."""

    name: str
    holds: bool
    text: str
    have: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Blast:
    """How many of the nodes concerned (a run's, else the cluster's) are out now, how many after the action, of how many.

    `most`: so many may be out at once; `words`: both limits in one sentence, the same wherever they are said.
    """

    out_now: int
    out_after: int
    nodes: int
    most: int
    words: str


def guard_settings(cluster_id: int) -> GuardSettings:
    """Return a cluster's limits in force."""
    row = Guard.objects.filter(pk=cluster_id).first()
    if row is None:
        return GuardSettings()
    return GuardSettings(
        window_s=row.window_s,
        exclusions_per_window=row.exclusions_per_window,
        share_of_run=row.share_of_run,
        updated_by=row.updated_by,
        updated_at=row.updated_at,
    )


def confirmation_needed(run: RunRow) -> bool:
    """Return whether stopping this run needs its name typed."""
    return (run.world_size or 0) > limit_value(run.limits, "confirm_above_ranks")


def guards_of_exclusion(
    *, cluster_id: int, run: RunRow | None, adding: Collection[int], pool: Sequence[PoolNode], now: datetime
) -> tuple[list[GuardRow], Blast]:
    """Return the guards of putting the nodes `adding` out, and how far it reaches; nodes that we keep out already add nothing.

    Where no run is named, the share of each run counts that works on one of them.
    """
    limits = guard_settings(cluster_id)
    out = {node.id for node in pool if node.is_out}
    ours = {node.id for node in pool if node.is_ours}
    new = set(adding) - ours
    lately = nodes_excluded(cluster_id=cluster_id, since=now - timedelta(seconds=limits.window_s))
    put_out = ours | set(lately)
    usable = run_nodes(run, pool, put_out=put_out) if run is not None else set()
    # A node that this run cannot use takes nothing away from what may be put out of it.
    used = sum(node in usable for node in lately) if usable else len(lately)
    guards = []
    counted = new & usable if usable else new
    if counted:
        guards.append(_window_guard(used, adding=len(counted), limits=limits))
    if others := new - counted:
        guards.append(_window_guard(len(lately), adding=len(others), limits=limits))
    for one, nodes in [(run, usable)] if run is not None else _working_on(new, pool, put_out=put_out):
        if nodes and new:
            guards.append(_share_guard(one, usable=nodes, ours=ours, out=out, new=new, limits=limits))
    about = usable or {node.id for node in pool}
    most = min(_share_most(usable, limits), len(about)) if usable else limits.exclusions_per_window
    words = _limits_words(
        run if usable else None, out=len(out & about), of=len(about), used=used, most=most, limits=limits
    )
    blast = Blast(
        out_now=len(out & about), out_after=len((out | new) & about), nodes=len(about), most=most, words=words
    )
    return guards, blast


def run_nodes(run: RunRow, pool: Sequence[PoolNode], *, put_out: Collection[int]) -> set[int]:
    """Return the nodes that a run can use: those its launcher names, else those its newest attempt sits on.

    put_out: nodes that are missing from every attempt since they were put out, and count all the same where an earlier
    one sat on them: else each restart would forget what was taken from the run before.
    """
    names = set(run.launcher.get("nodes") or ())
    if names:
        return {node.id for node in pool if names & node.names}
    return nodes_of_run(run.id, among=put_out)


def _working_on(
    nodes: Collection[int], pool: Sequence[PoolNode], *, put_out: Collection[int]
) -> list[tuple[RunRow, set[int]]]:
    """Return the runs whose open attempts sit on these nodes, each with the nodes it can use."""
    busy = {run_id for node in pool if node.id in nodes for run_id in node.open_runs}
    return [(run, run_nodes(run, pool, put_out=put_out)) for run in runs_by_id(busy).values()]


def _share_most(usable: Collection[int], limits: GuardSettings) -> int:
    return max(1, int(limits.share_of_run * len(usable) + 1e-9))


def _nodes(n: int) -> str:
    return f"{n} node{'' if n == 1 else 's'}"


def _limits_words(run: RunRow | None, *, out: int, of: int, used: int, most: int, limits: GuardSettings) -> str:
    whose = f" of {run.slug}" if run is not None else ""
    at_once = f"at most {most} at once, " if run is not None else ""
    return (
        f"{out} of {_nodes(of)}{whose} {'are' if out != 1 else 'is'} out; {at_once}{limits.exclusions_per_window} exclusions "
        f"in {limits.window_s / 3600:g} h, {used} used"
    )


def _window_guard(used: int, *, adding: int, limits: GuardSettings) -> GuardRow:
    most, hours = limits.exclusions_per_window, limits.window_s / 3600
    after = used + adding
    text = f"{used} of {most} exclusions allowed in {hours:g} h {'are' if used != 1 else 'is'} used"
    if after > most:
        text += f"; this would make it {after}"
    return GuardRow(name="exclusions_per_window", holds=after <= most, text=text, have=after, most=most)


def _share_guard(
    run: RunRow, *, usable: set[int], ours: set[int], out: set[int], new: set[int], limits: GuardSettings
) -> GuardRow:
    """Return whether a run loses no more of its nodes by us than it may; what others put out is theirs to answer for."""
    most = _share_most(usable, limits)
    before, after = len(ours & usable), len((ours | new) & usable)
    theirs = len((out - ours) & usable)
    others = f", beside {theirs} by others" if theirs else ""
    text = (
        f"{before} of {_nodes(len(usable))} of {run.slug} {'are' if before != 1 else 'is'} out{others}, at most {most} "
        "at once"
    )
    if after > most:
        text += f"; this would make it {after}"
    return GuardRow(name="share_of_run", holds=after <= most or after == before, text=text, have=after, most=most)
