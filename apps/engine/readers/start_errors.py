"""What a program says when it cannot start: mistakes of a path, a right, an import or an argument, which no retry mends."""

import re
from collections import defaultdict
from collections.abc import Iterable

from apps.engine.readers.exits import SHELL_WORDS

USER_SIDE = (
    "PermissionError",
    "Permission denied",
    "FileNotFoundError",
    "No such file or directory",
    "NotADirectoryError",
    "IsADirectoryError",
    "ModuleNotFoundError",
    "ImportError",
    "SyntaxError",
    "IndentationError",
    "NameError",
    "AttributeError",
    "TypeError",
    "KeyError",
    "unrecognized arguments",
    "the following arguments are required",
    "command not found",
)
"""Words of mistakes that stand in what somebody wrote or set. Source: ours, after case 27 of public reports; what a
machine or a network may cause (OSError 5, time-outs, CUDA and NCCL errors, ValueError of a bad batch) is not among them."""

MOST_CHARS = 300
"""Of a line; the rest of it says no more."""

MACHINE_SIDE = (
    "Input/output error",
    "Stale file handle",
    "Cannot allocate memory",
    "Text file busy",
    "Resource temporarily unavailable",
    "Transport endpoint is not connected",
)
"""Why a shell may be unable to run a command that is there and right. Source: errno(3)."""

_TELLS = re.compile(
    r"\w(Error|Exception|Interrupt)\b|\b(error|fatal|failed|failure|aborted|killed|terminate called|core dumped)\b",
    re.I,
)
"""Lines that say that something went wrong."""

_ECHO = re.compile(
    r"ChildFailedError|CalledProcessError|exit ?code|FAILED$|^Failures:|^Root Cause|^(srun|slurmstepd|mpirun|prterun)\b"
)
"""Lines in which a launcher tells that what it had started failed, which says nothing of why."""

_OWN = re.compile(r"^(\s*\[?(rank)?\s*\d+\]?\s*:\s*)+", re.IGNORECASE)
_ADDRESS = re.compile(r"0x[0-9a-f]+|\b[pP]id[ =:]*\d+")


def start_error(said: Iterable[tuple[int | None, str]], *, least_ranks: int = 2) -> str:
    """Return the user-side mistake that at least `least_ranks` ranks told in the same words, "" if there is none.

    said: (rank, text) of an attempt that never made a step; text may be many lines. Lines of no known rank are left out.
    Of several mistakes the one of most ranks counts, among equals the first. Cost: O(characters).
    Source: case 27 of public reports.

    >>> start_error([(80, "[rank80]: PermissionError: [Errno 13] Permission denied: '/a'"),
    ...              (96, "[rank96]: PermissionError: [Errno 13] Permission denied: '/a'")])
    "PermissionError: [Errno 13] Permission denied: '/a'"
    >>> start_error([(80, "PermissionError: '/a'"), (80, "PermissionError: '/a'")])
    ''
    """
    ranks: dict[str, set[int]] = defaultdict(set)
    for rank, text in said:
        if rank is None:
            continue
        for line in text.splitlines():
            if any(word in line for word in USER_SIDE):
                ranks[_plain(line)].add(rank)
    most = max(ranks, key=lambda line: len(ranks[line]), default="")
    return most if most and len(ranks[most]) >= least_ranks else ""


def launch_error(said: str, *, status: int | None) -> str:
    """Return the user-side mistake with which a whole program ended, "" if its last words tell of none.

    said: its last lines, of all its processes together. status: its exit status, None if it is not known or a signal ended
    it: what was killed did not end by a mistake of its own.

    The last line that tells of an error counts: earlier ones were got over. Where the status is a shell's word that it
    could not find (127) or run (126) the command, its last line counts whatever the words. Cost: O(characters).
    Source: case 27 of public reports; POSIX shell, 2.8.2.

    >>> launch_error("Traceback (most recent call last):\\nModuleNotFoundError: No module named 'megatron'", status=1)
    "ModuleNotFoundError: No module named 'megatron'"
    >>> launch_error("FileNotFoundError: no cache yet, going on\\ntorch.OutOfMemoryError: CUDA out of memory", status=1)
    ''
    """
    if not status:
        return ""
    # Lines further in are the source of a traceback, or the body of a launcher's report.
    lines = [_plain(line) for line in said.splitlines() if not _OWN.sub("", line)[:1].isspace() and line.strip()]
    if status in SHELL_WORDS:
        last = lines[-1] if lines else f"exit status {status}: {SHELL_WORDS[status]}"
        return "" if any(word in last for word in MACHINE_SIDE) else last
    for line in reversed(lines):
        if "warning" not in line.lower() and any(word in line for word in USER_SIDE):
            return line
        if _TELLS.search(line) and not _ECHO.search(line):
            return ""
    return ""


def _plain(line: str) -> str:
    """Return a line without what differs from rank to rank."""
    return _ADDRESS.sub("…", _OWN.sub("", line)).strip()[:MOST_CHARS]
