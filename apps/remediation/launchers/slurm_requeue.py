"""Restarting a job that somebody else submitted: hold it, add to its list of nodes to avoid, release it, read back.

Each step looks first and does only what is missing, so that a worker that died in between is followed by another one.
"""

from apps.engine.readers.slurm import SlurmJob
from apps.remediation.launchers.slurm_cli import SlurmCli
from apps.remediation.launchers.slurm_jobs import (
    avoid_list,
    found_again,
    names_spelled,
    other_words,
    queue_words,
    receipt_of,
    same_nodes,
    still_there,
)
from apps.remediation.launching import LaunchRefused, LaunchUncertain, ReadBack, Receipt
from apps.remediation.selectors.rows import OrderInHand

BEGIN_IN_S = 2
"""A requeued job waits for its old credential to expire, two minutes by default, unless it is told otherwise. Told `now`,
it fails at once where a node has it again within the second in which its old credential was revoked ("already killed, do
not launch batch job", 6 of 24 on 22.05): credentials are compared by whole seconds. Two leave one for the clocks.
"""


def hold(cli: SlurmCli, order: OrderInHand, job: SlurmJob) -> Receipt:
    """Bring a job back into the queue, held; done when none of its processes is left."""
    if job.is_held:
        return receipt_of(job, f"job {job.id} is held in the queue")
    if job.state == "PENDING":
        # Slurm has requeued it by itself, or it never began: it must not start before its list is right.
        cli.change("scontrol", "hold", str(job.id))
    elif job.state != "COMPLETING" and (order.asked_at is None or job.runs):
        _requeue_hold(cli, job)
    seen = cli.job(job.id)
    if seen is not None and seen.is_held:
        return receipt_of(seen, f"job {job.id} is held in the queue (restart {seen.restarts})")
    return still_there(job, f"job {job.id} is on its way back into the queue")


def follow(cli: SlurmCli, order: OrderInHand, job_id: int) -> Receipt:
    """Release a held job without the nodes that are out; a job that has ended is brought back first."""
    job = cli.job(job_id)
    if job is None:
        raise LaunchRefused(
            f"Slurm does not know job {job_id} any more; submit it again, then it is followed by itself"
        )
    if why := other_words(order, job):
        raise LaunchRefused(f"{why}; nothing was done to it")
    if job.is_over:
        _requeue_hold(cli, job)
        job = cli.job(job_id) or job
    if job.state == "COMPLETING" or job.is_over:
        return still_there(job, f"job {job_id} is still ending")
    if job.runs:
        if is_later(job, order):
            return found_again(job, f"{queue_words(job)} (restart {job.restarts})", order.exclude_known)
        raise LaunchRefused(f"job {job_id} still runs as it was; nothing was started beside it")
    return _let_go(cli, order, job)


def follow_read_back(cli: SlurmCli, order: OrderInHand, job_id: int) -> ReadBack:
    """Say whether a job was released; a held one never starts by itself."""
    job = cli.job(job_id)
    if job is None:
        return ReadBack(None, Receipt(f"Slurm does not know job {job_id} any more"))
    if why := other_words(order, job):
        return ReadBack(None, Receipt(why))
    if job.is_over and order.restarts is None:
        return ReadBack(None, Receipt(f"job {job_id} is over; whether it ran again is not known"))
    if job.is_held or (job.is_over and not is_later(job, order)):
        return ReadBack(False, Receipt(f"job {job_id} is {'held' if job.is_held else 'over'}; it was not released"))
    if job.state == "PENDING" and order.restarts is not None and not is_later(job, order):
        return ReadBack(None, Receipt(queue_words(job)))
    return ReadBack(True, found_again(job, queue_words(job), order.exclude_known))


def is_later(job: SlurmJob, order: OrderInHand) -> bool:
    """Return whether a job is known to have started again since the attempt that an order is about."""
    return order.restarts is not None and (job.restarts or 0) > order.restarts


def _let_go(cli: SlurmCli, order: OrderInHand, job: SlurmJob) -> Receipt:
    spelled, unknown = names_spelled(cli.node_names(), order.exclude_known) if order.exclude_known else ([], [])
    ours_before = [name for name in order.excluded_before if name not in spelled]
    wanted = avoid_list(job.exc_nodes, add=spelled, drop=ours_before)
    if not same_nodes(wanted, job.exc_nodes):
        cli.change("scontrol", "update", f"JobId={job.id}", f"ExcNodeList={wanted}")
    if job.is_held:
        cli.change("scontrol", "release", str(job.id))
    cli.change("scontrol", "update", f"JobId={job.id}", f"StartTime=now+{BEGIN_IN_S}")
    seen = cli.job(job.id)
    if seen is None or seen.is_held:
        raise LaunchUncertain(f"job {job.id} was released, but is not seen to be")
    aside = f"; Slurm does not know {', '.join(unknown)}" if unknown else ""
    if not same_nodes(seen.exc_nodes, wanted):
        aside += f"; its ExcNodeList is {seen.exc_nodes or 'empty'}, not {wanted}"
    without = f" without {wanted}" if wanted else ""
    return receipt_of(seen, f"{queue_words(seen)}{without}{aside}", excluded=spelled)


def _requeue_hold(cli: SlurmCli, job: SlurmJob) -> None:
    if job.requeue is False:
        raise LaunchRefused(
            f"job {job.id} may not be requeued (it was submitted with --no-requeue): "
            f"scontrol update JobId={job.id} Requeue=1 allows it"
        )
    cli.change("scontrol", "requeuehold", str(job.id))
