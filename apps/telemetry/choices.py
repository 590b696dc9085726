"""The words of telemetry: whose report it is, which series it feeds, what was told, why a value was refused."""

from django.db.models import TextChoices


class OwnerKind(TextChoices):
    """Whose series a report feeds; the unit of a fold."""

    ATTEMPT = "ATTEMPT"
    CLUSTER = "CLUSTER"


class ScopeKind(TextChoices):
    """What a report's identity is counted within."""

    ATTEMPT = "ATTEMPT"
    NODE = "NODE"
    CLUSTER = "CLUSTER"


class SeriesKind(TextChoices):
    """What the entities of a series are: ranks by step, GPU slots or nodes by 15 s."""

    RANK = "RANK"
    GPU = "GPU"
    NODE = "NODE"


class FactKind(TextChoices):
    """What an event says; senders write the lower-case word."""

    LOG = "LOG", "log line"
    EXIT = "EXIT", "exit"
    XID = "XID", "XID"
    NOTE = "NOTE", "note"
    PHASE = "PHASE", "phase"
    STACK = "STACK", "stack"


class Which(TextChoices):
    """Which value that is not finite was produced."""

    NAN = "NAN", "NaN"
    PLUS_INF = "+INF", "+∞"
    MINUS_INF = "-INF", "−∞"


class Reason(TextChoices):
    """Why something was not taken over; the label is the sentence that people read."""

    KEPT_WAITING = (
        "KEPT_WAITING",
        "Paceline cannot take these reports in for a fault of its own. They are kept and tried again.",
    )
    UNREADABLE = "UNREADABLE", "The report, or this part of it, has another form than reports have."
    SHAPE = "SHAPE", "The numbers don't fit the lists of ranks, steps and metrics beside them."
    RANK_OUTSIDE = "RANK_OUTSIDE", "The attempt has no such rank."
    STEP_NEGATIVE = "STEP_NEGATIVE", "A step is a whole number from 0 on."
    STEP_FAR = "STEP_FAR", "The step is more than 10,000 past the newest settled one."
    METRIC_NAME = "METRIC_NAME", "A metric's name has 1 to 63 letters, digits and underscores."
    METRICS_MANY = "METRICS_MANY", "This series has as many metrics as it may have."
    NOT_A_NUMBER = "NOT_A_NUMBER", "The value is no number."
    IMPOSSIBLE = "IMPOSSIBLE", "The value is physically impossible, so it is a blank, not a reading."
    TIME = (
        "TIME",
        "The time cannot be used: it is no RFC 3339 with a zone, far from any calendar's, or later than its report came.",
    )
    NODE_NAME = "NODE_NAME", "The node's name cannot be used."
    WORD = "WORD", "The word is none of those that this field knows."
    SIGNAL = "SIGNAL", "A signal is a number from 1 to 64, and an exit code fits into four bytes."
    EVENTS_MANY = "EVENTS_MANY", "More events came at once than are kept."
    SENDERS_MANY = "SENDERS_MANY", "More senders and restarts of senders than are kept apart."
    DEVICES_MANY = "DEVICES_MANY", "A node has at most 64 GPUs."
    DEVICE = "DEVICE", "A GPU is named by its UUID or its full PCI id."
    TOO_OLD = "TOO_OLD", "The reading is older than what is kept."
