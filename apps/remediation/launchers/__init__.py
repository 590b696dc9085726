"""The launchers, one file each, and the one way to use them.

To add one: a file here with a class that is a `launching.Launcher`; its kind in `choices.LauncherKind` and in
`runs.launcher`; a line in `LAUNCHERS`; its words in `selectors/commands.py`; what it can do in `selectors/preview.py`;
a row in `tests/remediation/test_contract.py`, which every launcher passes.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from apps.common.sweeps import sweeping
from apps.remediation.choices import LauncherKind, OrderKind
from apps.remediation.launchers import checks, slurm_nodes
from apps.remediation.launchers.local import LocalLauncher
from apps.remediation.launchers.processes import process_died_here, process_name, process_own
from apps.remediation.launchers.slurm import SlurmLauncher, slurm_of
from apps.remediation.launchers.slurm_watch import scheduler_look
from apps.remediation.launchers.webhook import WebhookLauncher
from apps.remediation.launching import Launcher, LaunchRefused, LaunchUnavailable, LaunchUncertain, Receipt
from apps.remediation.selectors.actions import launches_alive, launches_over
from apps.remediation.selectors.rows import LaunchFact, LaunchRow, OrderInHand, Outcome
from apps.remediation.services.scheduling import scheduler_claim
from apps.remediation.services.watching import launch_noted
from apps.runs.choices import AttemptState
from apps.runs.selectors import attempt_by_id

LAUNCHERS: dict[str, Launcher] = {
    LauncherKind.LOCAL: LocalLauncher(),
    LauncherKind.WEBHOOK: WebhookLauncher(),
    LauncherKind.SLURM: SlurmLauncher(),
}


KEPT_FOR = timedelta(days=30)
"""A month is what it takes until nobody asks any more what a program said."""

MOST_CHECKS = 2000
"""Folders of checks that are kept: one a node of a large cluster, some tens of MB."""

LOOKED_BACK = timedelta(days=7)
"""Folders are looked for in the week before that: an installation that was off for longer keeps some for good."""


def holder_own() -> str:
    """Return how this process is named as the one that has an order in hand."""
    return process_name(process_own())


def holder_died(holder: str) -> bool:
    """Return whether a process that has an order in hand is known to be gone. One that lives is never said to be."""
    return process_died_here(holder)


def order_carry_out(order: OrderInHand) -> Outcome:
    """Hand an order to its launcher; return what came of it, whatever that is."""
    launcher = LAUNCHERS.get(order.setting.kind)
    if launcher is None:
        return Outcome("REFUSED", f"there is no launcher for {order.setting.kind}")
    try:
        receipt = _WAYS[OrderKind(order.kind)](launcher, order)
    except LaunchRefused as error:
        return Outcome("REFUSED", _storable(str(error)))
    except LaunchUnavailable as error:
        return Outcome("UNAVAILABLE", _storable(str(error)))
    except LaunchUncertain as error:
        return Outcome("UNCERTAIN", _storable(str(error)))
    return _outcome(receipt)


_WAYS: dict[str, Callable[[Launcher, OrderInHand], Receipt]] = {
    OrderKind.STOP: lambda launcher, order: launcher.stop(order),
    OrderKind.LAUNCH: lambda launcher, order: launcher.launch(order),
    OrderKind.DRAIN: lambda _, order: slurm_nodes.drain(slurm_of(order), order),
    OrderKind.RESUME: lambda _, order: slurm_nodes.resume(slurm_of(order), order),
    OrderKind.CHECK: lambda _, order: checks.check(order),
}


def order_read_back(order: OrderInHand) -> Outcome:
    """Ask the launcher what came of an order nobody came back from; UNCERTAIN where it can't tell yet."""
    launcher = LAUNCHERS.get(order.setting.kind)
    if launcher is None:
        return Outcome("UNCERTAIN", f"there is no launcher for {order.setting.kind}")
    try:
        found = launcher.read_back(order)
    except LaunchUnavailable as error:
        return Outcome("UNCERTAIN", _storable(str(error)))
    if found.began:
        return _outcome(found.receipt)
    return Outcome("UNCERTAIN" if found.began is None else "NOT_DONE", _storable(found.receipt.text))


def launches_look(*, now: datetime) -> int:
    """Look at everything that was launched and not yet seen to end; return how many are gone.

    What a launcher cannot see is over when its attempt is. Jobs are not looked at here, each second and one by one, but
    where their scheduler is read.
    """
    seen = launches_alive(launchers=[kind for kind in LAUNCHERS if kind != LauncherKind.SLURM])
    with sweeping("some launches could not be looked at") as each:
        return sum(each(seen, lambda launch: _look(launch, now=now)))


def scheduler_read(*, cluster_id: int, now: datetime) -> bool:
    """Read a cluster's scheduler if it is due and nobody else does; return whether it answered."""
    where = scheduler_claim(cluster_id=cluster_id, now=now)
    return where is not None and scheduler_look(where, now=now)


def launches_trim(*, now: datetime) -> int:
    """Forget the output of programs and checks that ended long ago; what came of them stays in the database."""
    gone = LocalLauncher().trim(launches_over(before=now - KEPT_FOR, since=now - KEPT_FOR - LOOKED_BACK))
    return gone + checks.checks_trim(before=now - KEPT_FOR, most=MOST_CHECKS)


def _look(launch: LaunchRow, *, now: datetime) -> bool:
    launcher = LAUNCHERS.get(launch.launcher)
    fact = launcher.look(launch) if launcher is not None else None
    if fact is None:
        fact = LaunchFact(gone=attempt_by_id(launch.attempt_id).state == AttemptState.ENDED)
    if fact.gone:
        launch_noted(launch_id=launch.id, fact=fact, now=now)
    return fact.gone


def _outcome(receipt: Receipt) -> Outcome:
    return Outcome("DONE" if receipt.done else "GOING_ON", _storable(receipt.text), _storable(receipt.facts))


def _storable(value: Any) -> Any:
    """Return what foreign programs said as PostgreSQL can keep it: no zero byte, no half of a surrogate pair."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_storable(name): _storable(part) for name, part in value.items()}
    return [_storable(part) for part in value] if isinstance(value, list | tuple) else value
