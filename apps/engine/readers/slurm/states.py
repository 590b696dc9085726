"""State words of nodes and jobs, long and short, with their suffixes, as base state and flags."""

from collections.abc import Iterable

_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Source: sinfo(1), NODE STATE CODES."""

_BASES = {
    "IDLE": "IDLE",
    "MIXED": "MIXED",
    "MIX": "MIXED",
    "ALLOCATED": "ALLOCATED",
    "ALLOC": "ALLOCATED",
    "DOWN": "DOWN",
    "ERROR": "ERROR",
    "FUTURE": "FUTURE",
    "FUTR": "FUTURE",
    "UNKNOWN": "UNKNOWN",
    "UNK": "UNKNOWN",
}

_BOTH = {
    # Words that say base and flag at once.
    "DRAINED": ("IDLE", "DRAIN"),
    "DRAINING": ("ALLOCATED", "DRAIN"),
    "DRNG": ("ALLOCATED", "DRAIN"),
    "FAILING": ("ALLOCATED", "FAIL"),
    "FAILG": ("ALLOCATED", "FAIL"),
    "COMP": ("ALLOCATED", "COMPLETING"),
    "ALLOCATED+": ("ALLOCATED", "COMPLETING"),
}

_FLAGS = {
    "DRAIN": "DRAIN",
    "FAIL": "FAIL",
    "MAINT": "MAINTENANCE",
    "MAINTENANCE": "MAINTENANCE",
    "RESV": "RESERVED",
    "RESERVED": "RESERVED",
    "PLND": "PLANNED",
    "PLANNED": "PLANNED",
    "COMPLETING": "COMPLETING",
    "NO_RESPOND": "NOT_RESPONDING",
    "NOT_RESPONDING": "NOT_RESPONDING",
    "POWER_DOWN": "POWER_DOWN",
    "POW_DN": "POWERED_DOWN",
    "POWERED_DOWN": "POWERED_DOWN",
    "POWERING_DOWN": "POWERING_DOWN",
    "POW_UP": "POWERING_UP",
    "POWERING_UP": "POWERING_UP",
    "BOOT": "REBOOT_ISSUED",
    "REBOOT": "REBOOT_REQUESTED",
    "INVAL": "INVALID_REG",
    "BLOCKED": "BLOCKED",
    "BLOCK": "BLOCKED",
    "NPC": "PERFCTRS",
}

_JOB_STATES = {
    "PD": "PENDING",
    "R": "RUNNING",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "NF": "NODE_FAIL",
    "PR": "PREEMPTED",
    "S": "SUSPENDED",
    "CF": "CONFIGURING",
    "BF": "BOOT_FAIL",
    "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY",
    "RQ": "REQUEUED",
    "RV": "REVOKED",
    "SE": "SPECIAL_EXIT",
}
_JOB_FLAGS = frozenset(
    {"COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESIZING", "SIGNALING"}
    | {"STOPPED", "STAGE_OUT", "POWER_UP_NODE", "LAUNCH_FAILED", "UPDATE_DB", "RECONFIG_FAIL", "EXPEDITING"}
)


def node_state(words: str | Iterable[str]) -> tuple[str, frozenset[str]] | None:
    """Return a node's base state and its flags; None if the words hold no state at all.

    words: `IDLE+DRAIN`, `drng*`, or the list of newer JSON. Flags that are not known are kept as they stand.

    >>> node_state("drained*") == ("IDLE", frozenset({"DRAIN", "NOT_RESPONDING"}))
    True
    """
    parts = words.split("+") if isinstance(words, str) else list(words)
    base, flags = "", set[str]()
    for part in parts:
        word = str(part).strip().upper()
        while word and word[-1] in _SUFFIXES:
            flags.add(_SUFFIXES[word[-1]])
            word = word[:-1]
        if word in _BASES:
            base = _BASES[word]
        elif word in _BOTH:
            told, flag = _BOTH[word]
            base = base or told
            flags.add(flag)
        elif word:
            flags.add(_FLAGS.get(word, word))
    known = flags & set(_FLAGS.values())
    if not base and not known:
        return None
    # A short word such as `drain` or `maint` is all that stands there: nothing runs, or another word would.
    return base or "IDLE", frozenset(flags)


def job_state(words: str | Iterable[str]) -> tuple[str, frozenset[str]] | None:
    """Return a job's state and its flags; None if there is none. `CANCELLED by 0` is CANCELLED.

    >>> job_state(["COMPLETED", "COMPLETING"]) == ("COMPLETED", frozenset({"COMPLETING"}))
    True
    """
    parts = words.replace(",", "+").split("+") if isinstance(words, str) else list(words)
    found = [str(part).strip().upper().partition(" ")[0].rstrip("+") for part in parts if str(part).strip()]
    long = [_JOB_STATES.get(word, word) for word in found]
    flags = frozenset(word for word in long if word in _JOB_FLAGS)
    states = [word for word in long if word not in _JOB_FLAGS]
    if not long:
        return None
    return (states[0] if states else long[0]), flags
