"""`scontrol show node` and `scontrol show job`: records of `Key=value`, one line each (`-o`) or several."""

import re
from collections.abc import Iterator
from datetime import tzinfo

from apps.engine.readers.slurm.records import Listing, SlurmJob, SlurmNode, Unread
from apps.engine.readers.slurm.states import job_state, node_state
from apps.engine.readers.slurm.times import NOTHING, SlurmTime, time_read

MOST_TEXT = 256 * 1024 * 1024
SAMPLES = 5

_KEY = re.compile(r"(?:^|(?<=\s))([A-Z][A-Za-z0-9_/:]*)=")
_NODE_BEGIN = re.compile(r"^(?=NodeName=)", re.MULTILINE)
_JOB_BEGIN = re.compile(r"^(?=JobId=)", re.MULTILINE)
_SET_BY = re.compile(r"(.*) \[([^\[\]@]*)@([^\[\]]*)\]", re.DOTALL)
_SET_BY_ANYWHERE = re.compile(r"(.* \[[^\[\]@]*@[^\[\]]*\])", re.DOTALL)
_NODES = re.compile(r"(\d{1,6})([kK])?(?:-\d{1,6}[kK]?)?")
_EMPTY = frozenset({"(null)", "N/A", "n/a", "None", "n/s"})
_FREE = frozenset({"JobName", "Comment", "AdminComment", "SystemComment", "Extra", "Command", "WorkDir", "SubmitLine"})
"""What people write themselves: it may hold anything, a false `JobState=` included, up to the end of its line."""


def nodes_read(text: str, *, zone: tzinfo) -> Listing:
    """Return the nodes of `scontrol show node`, with or without `-o`, of any version.

    text: as printed. zone: in which Slurm writes times without an offset.
    A record without a name or a state is counted, never guessed.
    Cost: the length of `text`.
    Source: ours; texts of 22.05 to 26.05.
    """
    found, unread = list[SlurmNode](), list[str]()
    for record in _records(text, _NODE_BEGIN):
        node = _node(record, zone)
        if node is not None:
            found.append(node)
        else:
            unread.append(record)
    return Listing(nodes=tuple(found), not_understood=len(unread), samples=_samples(unread))


def jobs_read(text: str, *, zone: tzinfo) -> Listing:
    """Return the jobs of `scontrol show job`, without `-o` (there, what people wrote cannot be told from fields).

    text, zone: as `nodes_read`.
    Cost: the length of `text`.
    Source: ours; texts of 22.05.
    """
    found, unread = list[SlurmJob](), list[str]()
    for record in _records(text, _JOB_BEGIN):
        job = _job(record, zone)
        if job is not None:
            found.append(job)
        else:
            unread.append(record)
    return Listing(jobs=tuple(found), not_understood=len(unread), samples=_samples(unread))


def _records(text: str, begin: re.Pattern[str]) -> Iterator[str]:
    for record in begin.split(text[:MOST_TEXT]):
        if record.strip():
            yield record


def _samples(unread: list[str]) -> tuple[Unread, ...]:
    return tuple(Unread("no name, number or state", record[:200]) for record in unread[:SAMPLES])


def _fields(record: str, free: frozenset[str]) -> dict[str, str]:
    """Return the first value of each key. A key of `free` takes the rest of its line."""
    fields: dict[str, str] = {}
    for line in record.splitlines():
        place = 0
        while found := _KEY.search(line, place):
            following = _KEY.search(line, found.end())
            end = len(line) if following is None or found[1] in free else following.start()
            fields.setdefault(found[1], line[found.end() : end].strip())
            place = end
            if end == len(line):
                break
    return {key: "" if value in _EMPTY else value for key, value in fields.items()}


def _node(record: str, zone: tzinfo) -> SlurmNode | None:
    head, reason, tail = _reason_apart(record)
    fields = _fields(head, frozenset()) | _fields(tail, frozenset())
    state = node_state(fields.get("State", ""))
    name = fields.get("NodeName", "")
    if state is None or not name or any(letter.isspace() for letter in name):
        return None
    by, at = "", NOTHING
    if marked := _SET_BY.fullmatch(reason):
        reason, by, at = marked[1], marked[2], time_read(marked[3], zone=zone) or SlurmTime(None, marked[3])
    return SlurmNode(
        name=name,
        base=state[0],
        flags=state[1],
        reason=reason,
        reason_by=by,
        reason_at=at,
        partitions=names_apart(fields.get("Partitions", "")),
        version=fields.get("Version", ""),
    )


def _reason_apart(record: str) -> tuple[str, str, str]:
    """Return what stands before the reason, the reason with who set it, and what stands after it.

    A reason is free text and may hold `State=IDLE`; it ends at its ` [user@time]`, or with its line.
    """
    head, sign, rest = record.partition(" Reason=")
    if not sign:
        return record, "", ""
    line, _, below = rest.partition("\n")
    if marked := _SET_BY_ANYWHERE.match(line):
        return head, marked[1].strip(), line[marked.end() :] + "\n" + below
    return head, line.strip(), below


def _job(record: str, zone: tzinfo) -> SlurmJob | None:
    fields = _fields(record, _FREE)
    state = job_state(fields.get("JobState", ""))
    number = fields.get("JobId", "")
    if state is None or not number.isdecimal() or len(number) > 10:
        return None
    status, signal = exit_read(fields.get("ExitCode", ""))
    # Before 23.02 there is one list: of what it asks for, and once it has nodes of what it has.
    requested = fields.get("ReqTRES", fields.get("TRES", "") if state[0] == "PENDING" else "")

    def at(key: str) -> SlurmTime:
        return time_read(fields.get(key, ""), zone=zone) or SlurmTime(None, fields.get(key, "")[:40])

    return SlurmJob(
        id=int(number),
        state=state[0],
        flags=state[1],
        reason=fields.get("Reason", ""),
        name=fields.get("JobName", ""),
        user=fields.get("UserId", "").partition("(")[0],
        comment=fields.get("Comment", ""),
        array_id=whole(fields.get("ArrayJobId", "")),
        array_task=fields.get("ArrayTaskId", ""),
        restarts=whole(fields.get("Restarts", "")),
        requeue={"0": False, "1": True}.get(fields.get("Requeue", "")),
        priority=whole(fields.get("Priority", "")),
        nodes=fields.get("NodeList", ""),
        exc_nodes=fields.get("ExcNodeList", ""),
        failed_node=fields.get("FailedNode", ""),
        nodes_asked=nodes_needed(tres_nodes(requested), nodes_least(fields.get("NumNodes", ""))),
        partitions=names_apart(fields.get("Partition", "")),
        submitted_at=at("SubmitTime"),
        eligible_at=at("EligibleTime"),
        started_at=at("StartTime"),
        ended_at=at("EndTime"),
        exit_status=status,
        exit_signal=signal,
    )


def whole(text: str) -> int | None:
    """Return a whole number, None if `text` is none.

    >>> whole("12"), whole("")
    (12, None)
    """
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def nodes_least(text: str) -> int | None:
    """Return the least number of nodes of Slurm's `NUMBER` or `LEAST-MOST`, None if it says none. `1K` are 1024.

    >>> nodes_least("3"), nodes_least("2-4"), nodes_least("1K"), nodes_least(""), nodes_least("0")
    (3, 2, 1024, None, None)
    """
    found = _NODES.fullmatch(text.strip())
    return int(found[1]) * (1024 if found[2] else 1) or None if found else None


def tres_nodes(text: str) -> int | None:
    """Return how many nodes a list of what a job asks for names, None if none.

    >>> tres_nodes("cpu=8,mem=2G,node=4,billing=8"), tres_nodes("cpu=8")
    (4, None)
    """
    named = dict(part.partition("=")[::2] for part in text.split(","))
    return nodes_least(named.get("node", ""))


def nodes_needed(requested: int | None, shown: int | None) -> int | None:
    """Return with how many nodes a job would begin: what it requested goes before what is shown.

    A job that was put back is shown with the nodes that it had (22.05). One that asked for tasks and not for nodes has
    requested 1 and is shown with what its tasks take.

    >>> nodes_needed(2, 4), nodes_needed(1, 4), nodes_needed(None, 4)
    (2, 4, 4)
    """
    return shown if requested is None or (requested == 1 and shown is not None) else requested


def names_apart(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas.

    >>> names_apart("train,debug"), names_apart("")
    (('train', 'debug'), ())
    """
    return tuple(name for part in text.split(",") if (name := part.strip()))


def exit_read(text: str) -> tuple[int | None, int | None]:
    """Return exit status and signal of Slurm's `STATUS:SIGNAL`; signal None where there was none.

    >>> exit_read("0:9"), exit_read("6:0"), exit_read("")
    ((None, 9), (6, None), (None, None))
    """
    status, _, signal = text.partition(":")
    number = whole(signal) or None
    return (None if number else whole(status)), number
