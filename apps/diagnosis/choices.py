"""The words of findings."""

from django.db.models import TextChoices


class FindingState(TextChoices):
    """Whether what was found still holds."""

    OPEN = "OPEN", "open"
    CLOSED = "CLOSED", "closed"


class CloseReason(TextChoices):
    """Why a finding is closed. LATE: found in evidence about the past, closed from birth."""

    RECOVERED = "RECOVERED", "recovered"
    ATTEMPT_ENDED = "ATTEMPT_ENDED", "attempt ended"
    MERGED = "MERGED", "another finding says it better"
    LATE = "LATE", "seen late"


class AnswerKind(TextChoices):
    """What a detector said last."""

    VERDICT = "VERDICT", "found"
    UNDECIDED = "UNDECIDED", "not enough evidence"
    HEALTHY = "HEALTHY", "nothing found"


LEVEL_TOKENS = {"INFO": "none", "WARNING": "warn", "CRITICAL": "crit"}
CLASS_LABELS = {"COMPUTE": "compute", "COORDINATION": "coordination", "RECOVERY": "recovery", "WATCHING": "watching"}
