"""The Slurm launcher: submits, requeues and cancels jobs by Slurm's own programs, and reads back what came of it.

Two kinds of run. One whose launcher has a `command` or a `script` is submitted anew at every start (`slurm_submit`).
One without belongs to somebody's own job, which is requeued (`slurm_requeue`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from apps.engine.readers.slurm import SlurmJob
from apps.remediation.choices import ActionKind, OrderKind
from apps.remediation.launchers import slurm_requeue, slurm_submit
from apps.remediation.launchers.slurm_cli import ENDED_ALREADY, SlurmCli
from apps.remediation.launchers.slurm_jobs import fact_of, gone_receipt, other_words, receipt_of, still_there
from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain, ReadBack, Receipt
from apps.remediation.selectors.rows import LaunchFact, LaunchRow, OrderInHand
from apps.remediation.selectors.schedulers import scheduler_of


class SlurmLauncher:
    """Drives the Slurm of the run's cluster."""

    def launch(self, order: OrderInHand) -> Receipt:
        cli = slurm_of(order)
        with _half_done(cli):
            if submits(order):
                return slurm_submit.submit(cli, order)
            return slurm_requeue.follow(cli, order, _job_id(order))

    def stop(self, order: OrderInHand) -> Receipt:
        cli, job_id = slurm_of(order), _job_id(order)
        with _half_done(cli):
            return self._stopped(cli, order, job_id)

    def _stopped(self, cli: SlurmCli, order: OrderInHand, job_id: int) -> Receipt:
        job = cli.job(job_id)
        if job is not None and (why := other_words(order, job)):
            raise LaunchRefused(f"{why}; nothing was done to it")
        if job is None or job.is_over:
            return gone_receipt(job_id, job)
        if order.asked_at is None and job.runs and slurm_requeue.is_later(job, order):
            raise LaunchRefused(
                f"Slurm started job {job_id} again by itself meanwhile (restart {job.restarts}); look again"
            )
        return _cancel(cli, order, job) if cancels(order) else slurm_requeue.hold(cli, order, job)

    def read_back(self, order: OrderInHand) -> ReadBack:
        try:
            cli = slurm_of(order)
            if order.kind == OrderKind.STOP:
                return _stop_read_back(cli, order)
            if submits(order):
                return slurm_submit.read_back(cli, order)
            return slurm_requeue.follow_read_back(cli, order, _job_id(order))
        except LaunchRefused as error:
            return ReadBack(None, Receipt(error.message))

    def look(self, launch: LaunchRow) -> LaunchFact | None:
        where = scheduler_of(launch.cluster_id)
        if where is None or not launch.external_id.isdecimal():
            return None
        try:
            job = SlurmCli(where).job(int(launch.external_id))
        except (LaunchUnavailable, LaunchRefused):
            return LaunchFact(gone=False)
        return None if job is None else fact_of(job)


@contextmanager
def _half_done(cli: SlurmCli) -> Iterator[None]:
    """Make of a failure after something was changed what it is: uncertain, to be read back and never called nothing."""
    try:
        yield
    except (LaunchUnavailable, LaunchRefused) as error:
        if not cli.has_changed:
            raise
        raise LaunchUncertain(f"something was done already, then: {error.message}") from error


def submits(order: OrderInHand) -> bool:
    """Return whether a start of this run is a submission of its own."""
    return bool(order.setting.command or order.setting.script) and not order.releases


def cancels(order: OrderInHand) -> bool:
    """Return whether a stop ends the job for good, and not only until it is released again."""
    return order.action_kind == ActionKind.STOP_RUN or submits(order)


def _cancel(cli: SlurmCli, order: OrderInHand, job: SlurmJob) -> Receipt:
    grace_s = order.setting.stop_grace_s
    waited_s = (order.claimed_at - order.asked_at).total_seconds() if order.asked_at is not None else 0.0
    if job.runs and waited_s < grace_s:
        if order.asked_at is None:
            cli.change("scancel", "--full", "--signal=TERM", str(job.id), already=ENDED_ALREADY)
        return still_there(job, f"job {job.id} was asked to leave and has {grace_s:g} s")
    if job.state != "COMPLETING":
        cli.change("scancel", str(job.id), already=ENDED_ALREADY)
    seen = cli.job(job.id)
    if seen is None or seen.is_over:
        return gone_receipt(job.id, seen)
    return still_there(job, f"job {job.id} was cancelled and is ending")


def _stop_read_back(cli: SlurmCli, order: OrderInHand) -> ReadBack:
    job_id = _job_id(order)
    job = cli.job(job_id)
    if job is not None and (why := other_words(order, job)):
        return ReadBack(None, Receipt(why))
    if job is None or job.is_over:
        return ReadBack(True, gone_receipt(job_id, job))
    if not cancels(order) and job.is_held:
        return ReadBack(True, receipt_of(job, f"job {job_id} is held in the queue"))
    return ReadBack(False, Receipt(f"job {job_id} is {job.state.lower()}; it is asked again"))


def slurm_of(order: OrderInHand) -> SlurmCli:
    """Return Slurm's programs as the order's cluster has them.

    Raises:
        LaunchRefused: none is set there.
    """
    if order.scheduler is None:
        raise LaunchRefused("this cluster has no Slurm set: an admin says where it is under Settings")
    return SlurmCli(order.scheduler)


def _job_id(order: OrderInHand) -> int:
    if order.job_id is None:
        raise LaunchRefused("which job of Slurm this attempt is is not known")
    return order.job_id
