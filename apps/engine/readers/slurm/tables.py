"""Listings as text: `sinfo -N -o`, `sinfo` as it comes, `sacct --parsable`."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo

from apps.engine.readers.slurm.hostlist import HostlistMalformed, HostlistTooLarge, hostlist_expand
from apps.engine.readers.slurm.records import Listing, SlurmJob, SlurmNode, Unread
from apps.engine.readers.slurm.scontrol import exit_read, names_apart, nodes_least, nodes_needed, tres_nodes, whole
from apps.engine.readers.slurm.states import job_state, node_state
from apps.engine.readers.slurm.times import NOTHING, SlurmTime, time_read

SAMPLES = 5
NODE_COLUMNS = ("name", "state", "reason", "reason_at")
"""`sinfo -N -h -o '%N|%T|%E|%H'`."""
FREE_COLUMN = "reason"
"""The one column that may hold the sign between columns."""
_NO_REASON = frozenset({"none", "(null)", "n/a"})


def nodes_table_read(text: str, *, zone: tzinfo, columns: Sequence[str] = NODE_COLUMNS, sign: str = "|") -> Listing:
    """Return the nodes of a table with one line a node; a node of several partitions stands there several times, once here.

    text: lines of `columns` with `sign` between them; a head line is skipped. A reason may hold `sign`: it is what
    stands between the columns left of it and those right of it. zone: as in `scontrol.nodes_read`.
    columns: of `name`, `state`, `reason`, `reason_by`, `reason_at`.
    Cost: the length of `text`.
    Source: ours; texts of 22.05 and 26.05.
    """
    found: dict[str, SlurmNode] = {}
    unread: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.upper().startswith("NODELIST"):
            continue
        fields = _split(line, columns, sign)
        node = _node(fields, zone) if fields is not None else None
        if node is None:
            unread.append(line)
        else:
            found.setdefault(node.name, node)
    return Listing(tuple(found.values()), not_understood=len(unread), samples=_samples("no line of this table", unread))


def summary_read(text: str) -> Listing:
    """Return the nodes of `sinfo` without options: lines that end in a state and a hostlist.

    text: as printed, head line included. Cost: the names it stands for.
    Source: ours; texts of 22.05.
    """
    found: dict[str, SlurmNode] = {}
    unread: list[str] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[-1] == "NODELIST":
            continue
        state = node_state(words[-2]) if len(words) >= 2 else None
        try:
            names = hostlist_expand(words[-1]) if state is not None else []
        except (HostlistMalformed, HostlistTooLarge):
            names = []
        if state is None or not names:
            unread.append(line)
            continue
        for name in names:
            found.setdefault(name, SlurmNode(name, state[0], state[1]))
    return Listing(tuple(found.values()), not_understood=len(unread), samples=_samples("no state and hostlist", unread))


def accounting_read(data: bytes, *, zone: tzinfo, sign: str = "|") -> Listing:
    """Return the jobs and steps of `sacct --parsable` or `--parsable2` with its head line; a step has its name in `step`.

    data: as printed; bytes that are not UTF-8 are replaced, and their records counted in `repaired`. `sign`: the
    delimiter. A field may hold line breaks: a record ends where it has as many fields as the head. A job that was
    requeued stands there once for each time it ran.
    zone: as in `scontrol.nodes_read`.
    Cost: the length of `data`.
    Source: ours; files of 20.11 to 23.02.
    """
    text = data.decode("utf-8", "replace")
    lines = text.split("\n")
    head = [name.strip() for name in lines[0].rstrip("\r").split(sign)]
    if "JobID" not in head and "JobIDRaw" not in head:
        return Listing(not_understood=1, samples=_samples("no head line with JobID", lines[:1]))
    jobs: list[SlurmJob] = []
    unread: list[str] = []
    repaired = 0
    for record in _records(lines[1:], fields=len(head), sign=sign):
        parts = record.split(sign)
        job = None
        if len(parts) == len(head):
            # A name may stand there twice; the first holds.
            job = _accounted(dict(zip(reversed(head), reversed(parts), strict=True)), zone)
        if job is None:
            unread.append(record)
            continue
        jobs.append(job)
        repaired += "\ufffd" in record
    return Listing(
        jobs=tuple(jobs),
        not_understood=len(unread),
        samples=_samples("not as many fields as the head", unread),
        repaired=repaired,
    )


def _records(lines: Sequence[str], *, fields: int, sign: str) -> Iterator[str]:
    """Join lines until they hold as many fields as a record has."""
    held: list[str] = []
    signs = 0
    for line in lines:
        if not held and not line.strip():
            continue
        held.append(line)
        signs += line.count(sign)
        if signs >= fields - 1:
            yield "\n".join(held)
            held, signs = [], 0
    if any(line.strip() for line in held):
        yield "\n".join(held)


def _accounted(fields: dict[str, str], zone: tzinfo) -> SlurmJob | None:
    number, _, step = (fields.get("JobIDRaw") or fields.get("JobID") or "").partition(".")
    words = fields.get("State", "")
    state = job_state(words) if words else ("UNKNOWN", frozenset[str]())
    job_id = whole(number.partition("_")[0])
    if state is None or job_id is None:
        return None
    status, signal = exit_read(fields.get("ExitCode", ""))

    def at(name: str) -> SlurmTime:
        return time_read(fields.get(name, ""), zone=zone) or SlurmTime(None, fields.get(name, "")[:40])

    shown = fields.get("JobID", "")
    return SlurmJob(
        id=job_id,
        state=state[0],
        flags=state[1],
        reason=fields.get("Reason", ""),
        name=fields.get("JobName", ""),
        user=fields.get("User", ""),
        comment=fields.get("Comment", ""),
        array_task=shown.partition("_")[2].partition(".")[0],
        nodes=fields.get("NodeList", "").replace("None assigned", ""),
        nodes_asked=nodes_needed(tres_nodes(fields.get("ReqTRES", "")), nodes_least(fields.get("NNodes", ""))),
        partitions=names_apart(fields.get("Partition", "")),
        submitted_at=at("Submit"),
        eligible_at=at("Eligible"),
        started_at=at("Start"),
        ended_at=at("End"),
        exit_status=status,
        exit_signal=signal,
        step=step,
    )


def _split(line: str, columns: Sequence[str], sign: str) -> dict[str, str] | None:
    parts = line.split(sign)
    more = len(parts) - len(columns)
    if more < 0 or (more and FREE_COLUMN not in columns):
        return None
    if more:
        place = list(columns).index(FREE_COLUMN)
        parts[place : place + more + 1] = [sign.join(parts[place : place + more + 1])]
    return dict(zip(columns, (part.strip() for part in parts), strict=True))


def _node(fields: dict[str, str], zone: tzinfo) -> SlurmNode | None:
    state, name = node_state(fields.get("state", "")), fields.get("name", "")
    if state is None or not name or any(letter.isspace() for letter in name):
        return None
    reason, by = fields.get("reason", ""), fields.get("reason_by", "")
    return SlurmNode(
        name=name,
        base=state[0],
        flags=state[1],
        reason="" if reason.lower() in _NO_REASON else reason,
        reason_by="" if by.lower() in ("unknown", *_NO_REASON) else by,
        reason_at=time_read(fields.get("reason_at", ""), zone=zone) or NOTHING,
    )


def _samples(why: str, unread: Sequence[str]) -> tuple[Unread, ...]:
    return tuple(Unread(why, text[:200]) for text in unread[:SAMPLES])
