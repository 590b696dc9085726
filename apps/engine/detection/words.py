"""The words detection speaks: stored as they stand here, in upper case, except phases and causes."""

from enum import IntEnum, StrEnum


class Class(StrEnum):
    """What kind of failure a cause belongs to; WATCHING is for Paceline's own view and carries no lost hours."""

    COMPUTE = "COMPUTE"
    COORDINATION = "COORDINATION"
    RECOVERY = "RECOVERY"
    WATCHING = "WATCHING"


class Level(StrEnum):
    """How much it matters; INFO opens no incident."""

    INFO = "INFO"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"


class Certainty(StrEnum):
    """SUSPECTED is shown; only CONFIRMED may be acted on."""

    SUSPECTED = "SUSPECTED"
    CONFIRMED = "CONFIRMED"


class SubjectKind(StrEnum):
    """What a verdict is about."""

    RANK = "RANK"
    NODE = "NODE"
    GPU = "GPU"
    STAGE = "STAGE"
    LINK = "LINK"
    STORAGE = "STORAGE"
    SWITCH = "SWITCH"
    RACK = "RACK"
    CLUSTER = "CLUSTER"
    RUN = "RUN"


class Trigger(StrEnum):
    """What makes a detector run: newly settled columns, the clock (each 2 s), or newly kept facts."""

    COLUMNS = "COLUMNS"
    CLOCK = "CLOCK"
    FACTS = "FACTS"


class CloseReason(StrEnum):
    """Why a detector itself closes a verdict: it is over, or another verdict says it better."""

    RECOVERED = "RECOVERED"
    MERGED = "MERGED"


class ProposalKind(StrEnum):
    """What a detector would have done about it."""

    NONE = "NONE"
    EXCLUDE_NODE = "EXCLUDE_NODE"
    RESTART_RUN = "RESTART_RUN"


class NonfiniteKind(IntEnum):
    """Which value that is not finite was produced."""

    NAN = 0
    PLUS_INF = 1
    MINUS_INF = 2


class Phase(IntEnum):
    """What a rank says it is doing; senders write the lower-case name."""

    STARTUP = 0
    RESTORE = 1
    FIRST_STEP = 2
    DATA = 3
    COMPUTE = 4
    COMMUNICATION = 5
    OPTIMIZER = 6
    CHECKPOINT = 7
    EVALUATION = 8
    SHUTDOWN = 9
    UNKNOWN = 10

    @property
    def word(self) -> str:
        """The name senders write.

        >>> Phase.FIRST_STEP.word
        'first_step'
        """
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> "Phase":
        """Return the phase a sender's word names; UNKNOWN for any other word.

        >>> Phase.of("communication").name, Phase.of("lunch").name
        ('COMMUNICATION', 'UNKNOWN')
        """
        return cls.__members__.get(word.upper(), cls.UNKNOWN)
