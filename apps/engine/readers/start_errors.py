"""What a program says when it cannot start: mistakes of a path, a right, an import or an argument, which no retry mends."""

import re
from collections import defaultdict
from collections.abc import Iterable

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


def _plain(line: str) -> str:
    """Return a line without what differs from rank to rank."""
    return _ADDRESS.sub("…", _OWN.sub("", line)).strip()[:MOST_CHARS]
