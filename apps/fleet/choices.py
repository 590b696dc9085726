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


class AtUntil(TextChoices):
    """What happens when the time comes until which a node was to be out."""

    END = "END", "it is taken back"
    ASK = "ASK", "people are asked"


class NoteKind(TextChoices):
    """What a later line of the ledger says of a node: under an exclusion, or alone."""

    ASKED = "ASKED", "its time has come"
    KEPT = "KEPT", "kept out longer"
    PASSED = "PASSED", "check passed"
    NOT_PASSED = "NOT_PASSED", "check not passed"


CHECKS = (NoteKind.PASSED, NoteKind.NOT_PASSED)


NODE_TOKENS: dict[str, str] = {
    NodeState.IN_SERVICE: "ok",
    NodeState.EXCLUDED: "none",
    NodeState.DRAINING: "busy",
    NodeState.DOWN: "crit",
    NodeState.UNKNOWN: "idle",
}
