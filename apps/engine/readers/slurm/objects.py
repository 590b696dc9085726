"""Nodes and jobs as JSON has them: `sinfo`, `squeue`, `sacct --json` and slurmrestd, from 21.08 to 25.11."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, tzinfo
from typing import Any

from apps.engine.readers.slurm.records import Listing, SlurmJob, SlurmNode, Unread
from apps.engine.readers.slurm.scontrol import names_apart, nodes_least, nodes_needed, tres_nodes
from apps.engine.readers.slurm.states import job_state, node_state
from apps.engine.readers.slurm.times import NOTHING, SlurmTime, epoch_read, number_read, time_read, times_in_order

SAMPLES = 5
MOST_NODES = 1_000_000
"""More than any job has; a larger number is none."""

MOST_TEXT = 4096
"""Characters of one field that are kept."""


def objects_read(nodes: Iterable[Any] = (), jobs: Iterable[Any] = (), *, zone: tzinfo = UTC) -> Listing:
    """Return the records of JSON objects of nodes and jobs, of whichever version.

    nodes, jobs: the members of the lists `nodes` and `jobs`, as decoded.
    zone: in which times stand that are text without an offset, as old versions write them; the others know theirs.
    What is no object, or has no name, number or state, is counted.
    Cost: n objects.
    Source: ours; fixtures of 21.08, 22.05, 24.05 and 25.11.
    """
    unread: list[Unread] = []
    count = 0

    def each(found: Iterable[Any], make: Callable[[Mapping[str, Any]], Any]) -> list[Any]:
        nonlocal count
        made = []
        for one in found:
            record = make(one) if isinstance(one, Mapping) else None
            if record is not None:
                made.append(record)
                continue
            count += 1
            if len(unread) < SAMPLES:
                unread.append(Unread("no name, number or state", str(one)[:200]))
        return made

    read_nodes, read_jobs = each(nodes, lambda one: _node(one, zone)), each(jobs, lambda one: _job(one, zone))
    return Listing(nodes=tuple(read_nodes), jobs=tuple(read_jobs), not_understood=count, samples=tuple(unread))


def _node(one: Mapping[str, Any], zone: tzinfo) -> SlurmNode | None:
    state = node_state([*_words(one.get("state")), *_words(one.get("state_flags"))])
    name = _text(one.get("name"))
    if state is None or not name or any(letter.isspace() for letter in name):
        return None
    return SlurmNode(
        name=name,
        base=state[0],
        flags=state[1],
        reason=_text(one.get("reason")),
        reason_by=_text(one.get("reason_set_by_user")),
        reason_at=_time(one.get("reason_changed_at"), zone),
        partitions=tuple(_words(one.get("partitions"))),
        version=_text(one.get("version") or one.get("slurmd_version")),
    )


def _job(one: Mapping[str, Any], zone: tzinfo) -> SlurmJob | None:
    # The accounting's jobs have state, times and array in objects of their own.
    kept = one.get("state") if isinstance(one.get("state"), Mapping) else {}
    times = one.get("time") if isinstance(one.get("time"), Mapping) else {}
    array = one.get("array") if isinstance(one.get("array"), Mapping) else {}
    assert isinstance(kept, Mapping)
    assert isinstance(times, Mapping)
    assert isinstance(array, Mapping)
    state = job_state(_words(one.get("job_state") or kept.get("current")))
    number = number_read(one.get("job_id"))
    if state is None or number is None or not 0 < number < 2**32:
        return None
    status, signal = _exit(one.get("exit_code"))
    told = (
        one.get("submit_time", times.get("submission")),
        one.get("eligible_time", times.get("eligible")),
        one.get("start_time", times.get("start")),
        one.get("end_time", times.get("end")),
    )
    submitted_at, eligible_at, started_at, ended_at = times_in_order((_time(value, zone) for value in told), zone=zone)
    comment = one.get("comment")
    return SlurmJob(
        id=number,
        state=state[0],
        flags=state[1],
        reason=_text(one.get("state_reason") or kept.get("reason")).removeprefix("None"),
        name=_text(one.get("name")),
        user=_text(one.get("user_name") or one.get("user")),
        comment=_text(comment.get("job") if isinstance(comment, Mapping) else comment),
        array_id=number_read(one.get("array_job_id", array.get("job_id"))) or None,
        array_task=_number_text(one.get("array_task_id", array.get("task_id"))),
        restarts=number_read(one.get("restart_cnt")),
        requeue=one.get("requeue") if isinstance(one.get("requeue"), bool) else None,
        priority=number_read(one.get("priority")),
        nodes=_text(one.get("nodes")),
        exc_nodes=_text(one.get("excluded_nodes")),
        failed_node=_text(one.get("failed_node")),
        nodes_asked=_nodes_asked(one),
        partitions=names_apart(_text(one.get("partition"))),
        submitted_at=submitted_at,
        eligible_at=eligible_at,
        started_at=started_at,
        ended_at=ended_at,
        exit_status=status,
        exit_signal=signal,
    )


def _nodes_asked(one: Mapping[str, Any]) -> int | None:
    """Return the least number of nodes of a job; some versions have it as a text, `2-4` included."""
    count = one.get("node_count", one.get("allocation_nodes"))
    shown = nodes_least(count) if isinstance(count, str) else _positive(count)
    tres = one.get("tres")
    listed = tres.get("requested") if isinstance(tres, Mapping) else None
    parts = [part for part in listed if isinstance(part, Mapping)] if isinstance(listed, list) else []
    requested = next((_positive(part.get("count")) for part in parts if part.get("type") == "node"), None)
    return nodes_needed(requested or tres_nodes(_text(one.get("tres_req_str"))), shown)


def _positive(value: Any) -> int | None:
    number = number_read(value)
    return number if number is not None and 0 < number <= MOST_NODES else None


def _exit(value: Any) -> tuple[int | None, int | None]:
    """Return status and signal: a wait status in old versions, an object with both in new ones."""
    if isinstance(value, Mapping):
        signal = value.get("signal")
        number = number_read(signal.get("id", signal.get("signal_id"))) if isinstance(signal, Mapping) else None
        return (None, number) if number else (number_read(value.get("return_code")), None)
    code = number_read(value)
    if code is None:
        return None, None
    return (None, code & 0x7F) if code & 0x7F else (code >> 8 & 0xFF, None)


def _time(value: Any, zone: tzinfo) -> SlurmTime:
    if isinstance(value, str) and not value.isdecimal():
        return time_read(value, zone=zone) or SlurmTime(None, value[:40])
    return epoch_read(value) or NOTHING


def _text(value: Any) -> str:
    return value[:MOST_TEXT] if isinstance(value, str) else ""


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return [word for word in value.replace(",", "+").split("+") if word]
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def _number_text(value: Any) -> str:
    number = number_read(value)
    return "" if number is None else str(number)
