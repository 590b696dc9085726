"""The launchers, one file each, and the one way to use them.

To add one: a file here with a class that is a `launching.Launcher`; its kind in `choices.LauncherKind` and in
`runs.launcher`; a line in `LAUNCHERS`; its words in `selectors/commands.py`; what it can do in `selectors/preview.py`;
a row in `tests/remediation/test_contract.py`, which every launcher passes.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from apps.common.sweeps import sweeping
from apps.remediation.choices import LauncherKind, OrderKind
from apps.remediation.launchers import slurm_nodes
from apps.remediation.launchers.local import LocalLauncher
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

LOOKED_BACK = timedelta(days=7)
"""Folders are looked for in the week before that: an installation that was off for longer keeps some for good."""


def order_carry_out(order: OrderInHand) -> Outcome:
    """Hand an order to its launcher; return what came of it, whatever that is."""
    launcher = LAUNCHERS.get(order.setting.kind)
    if launcher is None:
        return Outcome("REFUSED", f"there is no launcher for {order.setting.kind}")
    try:
        receipt = _WAYS[OrderKind(order.kind)](launcher, order)
    except LaunchRefused as error:
        return Outcome("REFUSED", str(error))
    except LaunchUnavailable as error:
        return Outcome("UNAVAILABLE", str(error))
    except LaunchUncertain as error:
        return Outcome("UNCERTAIN", str(error))
    return _outcome(receipt)


_WAYS: dict[str, Callable[[Launcher, OrderInHand], Receipt]] = {
    OrderKind.STOP: lambda launcher, order: launcher.stop(order),
    OrderKind.LAUNCH: lambda launcher, order: launcher.launch(order),
    OrderKind.DRAIN: lambda _, order: slurm_nodes.drain(slurm_of(order), order),
    OrderKind.RESUME: lambda _, order: slurm_nodes.resume(slurm_of(order), order),
}


def order_read_back(order: OrderInHand) -> Outcome:
    """Ask the launcher what came of an order nobody came back from; UNCERTAIN where it can't tell yet."""
    launcher = LAUNCHERS.get(order.setting.kind)
    if launcher is None:
        return Outcome("UNCERTAIN", f"there is no launcher for {order.setting.kind}")
    try:
        found = launcher.read_back(order)
    except LaunchUnavailable as error:
        return Outcome("UNCERTAIN", str(error))
    if found.began is None:
        return Outcome("UNCERTAIN", found.receipt.text)
    return _outcome(found.receipt) if found.began else Outcome("NOT_DONE", found.receipt.text)


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
    """Forget the output of programs that ended long ago; what happened to them stays in the database."""
    return LocalLauncher().trim(launches_over(before=now - KEPT_FOR, since=now - KEPT_FOR - LOOKED_BACK))


def _look(launch: LaunchRow, *, now: datetime) -> bool:
    launcher = LAUNCHERS.get(launch.launcher)
    fact = launcher.look(launch) if launcher is not None else None
    if fact is None:
        fact = LaunchFact(gone=attempt_by_id(launch.attempt_id).state == AttemptState.ENDED)
    if fact.gone:
        launch_noted(launch_id=launch.id, fact=fact, now=now)
    return fact.gone


def _outcome(receipt: Receipt) -> Outcome:
    return Outcome("DONE" if receipt.done else "GOING_ON", receipt.text, receipt.facts)
