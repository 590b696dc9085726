"""The words of runs and attempts, and the order in which a run's state is decided."""

from django.db.models import TextChoices


class RunState(TextChoices):
    """What a run is doing; the first that holds, in the order of DESIGN §1. Labels are the mock's status words."""

    FINISHED = "FINISHED", "Finished"
    GAVE_UP = "GAVE_UP", "Gave up"
    RESTARTING = "RESTARTING", "Restarting"
    QUEUED = "QUEUED", "Queued"
    STARTING = "STARTING", "Starting"
    STOPPED = "STOPPED", "Stopped"
    SILENT = "SILENT", "No data"
    HUNG = "HUNG", "Hung"
    SLOW = "SLOW", "Slow"
    RUNNING = "RUNNING", "On pace"


RUN_TOKENS: dict[str, str] = {
    RunState.FINISHED: "done",
    RunState.GAVE_UP: "crit",
    RunState.RESTARTING: "busy",
    RunState.QUEUED: "idle",
    RunState.STARTING: "busy",
    RunState.STOPPED: "crit",
    RunState.SILENT: "none",
    RunState.HUNG: "crit",
    RunState.SLOW: "warn",
    RunState.RUNNING: "ok",
}


class Mode(TextChoices):
    """How far Paceline may go by itself."""

    OBSERVE = "OBSERVE", "observe"
    PROPOSE = "PROPOSE", "propose"
    ACT = "ACT", "act"


class AttemptState(TextChoices):
    """Whether an attempt is over."""

    OPEN = "OPEN"
    ENDED = "ENDED"


class EndReason(TextChoices):
    """Why an attempt ended."""

    FINISHED = "FINISHED", "finished"
    CRASHED = "CRASHED", "crashed"
    HUNG = "HUNG", "hung"
    CANCELLED = "CANCELLED", "cancelled"
    PLANNED = "PLANNED", "planned stop"
    PREEMPTED = "PREEMPTED", "preempted"
    TIME_LIMIT = "TIME_LIMIT", "time limit"
    NODE_FAILURE = "NODE_FAILURE", "node failure"
    SUPERSEDED = "SUPERSEDED", "superseded"
    UNKNOWN = "UNKNOWN", "unknown"


FAILURES = frozenset({EndReason.CRASHED, EndReason.HUNG, EndReason.NODE_FAILURE})
"""The reasons that statistics count as failures; UNKNOWN is counted apart."""


class StartedBy(TextChoices):
    """Who began an attempt. SUBMITTED: it came from outside for the first time, by whom was not told."""

    PERSON = "PERSON", "a person, through Paceline"
    PACELINE = "PACELINE", "Paceline by itself"
    SCHEDULER = "SCHEDULER", "the scheduler by itself"
    LAUNCHER = "LAUNCHER", "its launcher by itself"
    SUBMITTED = "SUBMITTED", "from outside"


AUTOMATIC = frozenset({StartedBy.PACELINE, StartedBy.SCHEDULER, StartedBy.LAUNCHER})
"""Nobody pressed."""


class Authority(TextChoices):
    """Who said that an attempt ended, strongest last: a higher one replaces a lower one's reason."""

    SILENCE = "SILENCE", "silence"
    CLIENT = "CLIENT", "client"
    WRAPPER = "WRAPPER", "local wrapper"
    SCHEDULER = "SCHEDULER", "scheduler"
    ORDER = "ORDER", "our order"


AUTHORITY_RANK = {name: place for place, name in enumerate(Authority.values)}


class CheckpointState(TextChoices):
    """How far a save has come."""

    STARTED = "STARTED"
    QUEUED = "QUEUED"
    WRITTEN = "WRITTEN"
    SAVED = "SAVED"
    FAILED = "FAILED"
    DELETED = "DELETED"
    RESTORED = "RESTORED"


class Trust(TextChoices):
    """What a restart may expect of a checkpoint."""

    PENDING = "PENDING", "being written"
    COMPLETE = "COMPLETE", "complete"
    VERIFIED = "VERIFIED", "verified"
    SUSPECT = "SUSPECT", "suspect"
    FAILED = "FAILED", "failed"
    DELETED = "DELETED", "deleted"
