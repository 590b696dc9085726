"""The words of the fleet."""

from django.db.models import TextChoices


class NodeState(TextChoices):
    """Whether a node can be given work. Short words and tokens are the mock's."""

    IN_SERVICE = "IN_SERVICE", "in service"
    EXCLUDED = "EXCLUDED", "out"
    DRAINING = "DRAINING", "draining"
    DOWN = "DOWN", "down"
    UNKNOWN = "UNKNOWN", "unknown"


class TelemetryState(TextChoices):
    """Whether a node's own gauges arrive."""

    FRESH = "FRESH", "fresh"
    SILENT = "SILENT", "silent"
    FLAPPING = "FLAPPING", "flapping"
    NEVER = "NEVER", "never heard"


class ExclusionOrigin(TextChoices):
    """Who put a node out: one of our actions, or the site, as observed."""

    OURS = "OURS", "Paceline"
    OBSERVED = "OBSERVED", "observed"


NODE_TOKENS: dict[str, str] = {
    NodeState.IN_SERVICE: "ok",
    NodeState.EXCLUDED: "none",
    NodeState.DRAINING: "busy",
    NodeState.DOWN: "crit",
    NodeState.UNKNOWN: "idle",
}
