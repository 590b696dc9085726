"""The words of incidents and notices."""

from django.db.models import TextChoices


class IncidentState(TextChoices):
    """How far people and the run have come with it."""

    OPEN = "OPEN", "Open"
    ACKNOWLEDGED = "ACKNOWLEDGED", "Acknowledged"
    MITIGATED = "MITIGATED", "Mitigated"
    RESOLVED = "RESOLVED", "Resolved"
    FALSE_ALARM = "FALSE_ALARM", "False alarm"


UNRESOLVED = (IncidentState.OPEN, IncidentState.ACKNOWLEDGED, IncidentState.MITIGATED)

STATE_TOKENS: dict[str, str] = {
    IncidentState.OPEN: "crit",
    IncidentState.ACKNOWLEDGED: "warn",
    IncidentState.MITIGATED: "busy",
    IncidentState.RESOLVED: "done",
    IncidentState.FALSE_ALARM: "done",
}

MOVES: dict[str, frozenset[str]] = {
    IncidentState.OPEN: frozenset(
        {IncidentState.ACKNOWLEDGED, IncidentState.MITIGATED, IncidentState.RESOLVED, IncidentState.FALSE_ALARM}
    ),
    IncidentState.ACKNOWLEDGED: frozenset({IncidentState.MITIGATED, IncidentState.RESOLVED, IncidentState.FALSE_ALARM}),
    IncidentState.MITIGATED: frozenset(
        {IncidentState.OPEN, IncidentState.ACKNOWLEDGED, IncidentState.RESOLVED, IncidentState.FALSE_ALARM}
    ),
    IncidentState.RESOLVED: frozenset(),
    IncidentState.FALSE_ALARM: frozenset(),
}
"""From each state the states it may go to. What comes again after RESOLVED is a new incident, linked to the old."""

LEVEL_RANK = {"INFO": 0, "WARNING": 1, "CRITICAL": 2}


class Answer(TextChoices):
    """What people say of the named cause when they resolve: it feeds the detectors' record."""

    CONFIRMED = "CONFIRMED", "the cause was right"
    WRONG = "WRONG", "the cause was wrong"
    UNKNOWN = "UNKNOWN", "not known"


class NoticeKind(TextChoices):
    """What a notice tells."""

    OPENED = "OPENED", "opened"
    ESCALATED = "ESCALATED", "escalated"
    JOINED = "JOINED", "also"
    AGAIN = "AGAIN", "again"
    CLOSED = "CLOSED", "closed"
    BLIND = "BLIND", "Paceline is blind"
    SEES = "SEES", "Paceline sees again"


class Channel(TextChoices):
    """How a notice travels."""

    WEBHOOK = "WEBHOOK", "webhook"
    EMAIL = "EMAIL", "e-mail"


class NoticeState(TextChoices):
    """Whether it arrived."""

    PENDING = "PENDING", "waiting"
    SENT = "SENT", "sent"
    FAILED = "FAILED", "given up"


STOPS = frozenset({"rank_lost", "hang", "gpu_lost", "gpu_fault", "collective_mismatch"})
"""Causes that stop a whole run: that it then hangs, falls silent, loses ranks or ages is their wave."""

ORIGINS = STOPS | {"numeric_fault"}
"""Causes that name an incident before what they may have brought about."""

WAVE = frozenset({"hang", "no_telemetry", "checkpoint_stale", "data_stall", "run_slowdown", "rank_lost"})
"""Causes that a stop brings about elsewhere in the same attempt."""


def wave_of(cause: str) -> frozenset[str]:
    """Return the causes that `cause` can bring about at other places of the same attempt: a NaN spreads, and stops nothing."""
    return WAVE if cause in STOPS else frozenset({cause}) if cause in ORIGINS else frozenset()
