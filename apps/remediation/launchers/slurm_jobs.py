"""What a job's record means for an order: receipts, how it ended, and which nodes it is to avoid."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from apps.engine.readers.slurm import HostlistMalformed, HostlistTooLarge, SlurmJob, hostlist_compress, hostlist_expand
from apps.remediation.launching import LaunchRefused, Receipt
from apps.remediation.selectors.rows import LaunchFact, OrderInHand
from apps.remediation.services.jobs import END_REASONS, is_another
from apps.runs.choices import EndReason


def key_of(job: SlurmJob) -> str:
    """Return the attempt key of a job's present start; the reporter's own key extends it."""
    return f"slurm:{job.id}.{job.restarts or 0}"


def other_words(order: OrderInHand, job: SlurmJob) -> str:
    """Return a sentence if another job has an order's number by now, else nothing.

    A controller that was killed may forget a job and give its number out again; what is done to it then is done to a stranger.
    """
    if not is_another(order.job_name, job):
        return ""
    return f"job {job.id} is called {job.name[:80]} now and was {order.job_name[:80]}: it may be another one"


def external_id_of(job_id: int) -> str:
    """Return how attempts name a job, as the reporter does."""
    return f"slurm:{job_id}"


def fact_of(job: SlurmJob) -> LaunchFact:
    """Return whether a job is gone, and how it ended."""
    if not job.is_over:
        return LaunchFact(gone=False)
    return LaunchFact(
        gone=True,
        ended_at=job.ended_at.at,
        status=job.exit_status,
        signal=job.exit_signal,
        asked=job.state == "CANCELLED",
        reason=str(END_REASONS.get(job.state, EndReason.UNKNOWN)),
    )


def receipt_of(job: SlurmJob, text: str, **facts: object) -> Receipt:
    """Return the receipt that names a job and the key of its present start."""
    named = {"receipt": str(job.id), "key": key_of(job), "external_id": external_id_of(job.id), "job_name": job.name}
    return Receipt(text, {**named, "job_state": job.state, **facts})


def found_again(job: SlurmJob, text: str, wanted: Collection[frozenset[str]]) -> Receipt:
    """Return the receipt of an order whose own receipt was lost. What of the job's list is among `wanted` is ours.

    Without it the watcher would enter our own nodes in the ledger as kept out by somebody else.
    """
    try:
        avoided = hostlist_expand(job.exc_nodes)
    except (HostlistMalformed, HostlistTooLarge):
        avoided = []
    ours = [name for name in avoided if any(name in names for names in wanted)]
    return receipt_of(job, text, excluded=ours)


def still_there(job: SlurmJob, text: str) -> Receipt:
    """Return the receipt of an order that was taken and is looked at again."""
    return replace(receipt_of(job, text), done=False)


def gone_receipt(job_id: int, job: SlurmJob | None) -> Receipt:
    """Return the receipt of a stop that has nothing left to stop."""
    how = "Slurm does not know it any more" if job is None else f"it is {job.state.lower().replace('_', ' ')}"
    return Receipt(f"job {job_id} is gone: {how}", {"receipt": str(job_id)})


def queue_words(job: SlurmJob) -> str:
    """Return how far a released job is, for a sentence.

    >>> queue_words(SlurmJob(7, "PENDING", reason="Resources"))
    'job 7 waits in the queue (Resources)'
    """
    if job.state == "PENDING":
        return f"job {job.id} waits in the queue" + (f" ({job.reason})" if job.reason else "")
    return f"job {job.id} is {job.state.lower().replace('_', ' ')}"


def names_spelled(known: Collection[str], wanted: Iterable[frozenset[str]]) -> tuple[list[str], list[str]]:
    """Return nodes as Slurm spells them, and those of which it knows no name; `wanted` holds every name of each.

    Only whole names count: what is cut to a short name may be another machine.

    >>> names_spelled({"trn001"}, [frozenset({"trn001.site", "trn001"}), frozenset({"login"})])
    (['trn001'], ['login'])
    """
    spelled, unknown = [], []
    for names in wanted:
        found = sorted(names & set(known))
        if found:
            spelled.append(found[0])
        else:
            unknown.append(min(names))
    return spelled, unknown


def avoid_list(present: str, *, add: Iterable[str], drop: Iterable[str] = ()) -> str:
    """Return a job's list of nodes to avoid with ours added and ours of earlier dropped; what others put there stays.

    Raises:
        LaunchRefused: the present list cannot be read, so that it cannot be kept.
    """
    try:
        kept = [name for name in hostlist_expand(present) if name not in set(drop)]
    except (HostlistMalformed, HostlistTooLarge) as error:
        raise LaunchRefused(f"the job's ExcNodeList cannot be read: {error}") from error
    return hostlist_compress([*kept, *add])


def same_nodes(one: str, other: str) -> bool:
    """Return whether two hostlists stand for the same nodes."""
    return set(hostlist_expand(one)) == set(hostlist_expand(other))
