"""The words of actions and orders, and which state may follow which."""

from django.db.models import TextChoices


class ActionKind(TextChoices):
    """What somebody wants done."""

    EXCLUDE_NODE = "EXCLUDE_NODE", "exclude node"
    READMIT_NODE = "READMIT_NODE", "readmit node"
    CHECK_NODE = "CHECK_NODE", "check node"
    RESTART_RUN = "RESTART_RUN", "restart run"
    STOP_RUN = "STOP_RUN", "stop run"
    CHECKPOINT_NOW = "CHECKPOINT_NOW", "checkpoint now"
    RECORD_DONE = "RECORD_DONE", "record what was done by hand"


LEDGER = (ActionKind.EXCLUDE_NODE, ActionKind.READMIT_NODE)
"""What is done in our own ledger alone: it begins and ends in one transaction."""


class ActionState(TextChoices):
    """How far an action has come."""

    PROPOSED = "PROPOSED", "proposed"
    REQUESTED = "REQUESTED", "requested"
    RUNNING = "RUNNING", "running"
    SUCCEEDED = "SUCCEEDED", "succeeded"
    FAILED = "FAILED", "failed"
    UNCERTAIN = "UNCERTAIN", "uncertain"
    CANCELLED = "CANCELLED", "cancelled"
    DISMISSED = "DISMISSED", "dismissed"
    EXPIRED = "EXPIRED", "expired"
    REFUSED = "REFUSED", "refused"


OPEN = (ActionState.REQUESTED, ActionState.RUNNING, ActionState.UNCERTAIN)
"""An action in one of these holds its run and every node it names."""

SETTLES = (ActionState.DISMISSED, ActionState.SUCCEEDED)
"""Ends of a proposal after which the same is not proposed for the same finding again: turned down, or carried out."""

ACTION_TOKENS: dict[str, str] = {
    ActionState.PROPOSED: "info",
    ActionState.REQUESTED: "busy",
    ActionState.RUNNING: "busy",
    ActionState.SUCCEEDED: "ok",
    ActionState.FAILED: "crit",
    ActionState.UNCERTAIN: "warn",
    ActionState.CANCELLED: "idle",
    ActionState.DISMISSED: "idle",
    ActionState.EXPIRED: "idle",
    ActionState.REFUSED: "warn",
}

TRANSITIONS: dict[str, frozenset[str]] = {
    # REFUSED says that nothing was done, FAILED that something was; what is over stays over.
    ActionState.PROPOSED: frozenset({ActionState.REQUESTED, ActionState.DISMISSED, ActionState.EXPIRED}),
    ActionState.REQUESTED: frozenset(
        {
            ActionState.RUNNING,
            ActionState.CANCELLED,
            ActionState.EXPIRED,
            ActionState.REFUSED,
            ActionState.FAILED,
        }
    ),
    ActionState.RUNNING: frozenset(
        {
            ActionState.SUCCEEDED,
            ActionState.FAILED,
            ActionState.UNCERTAIN,
            ActionState.REFUSED,
        }
    ),
    ActionState.UNCERTAIN: frozenset(
        {ActionState.RUNNING, ActionState.SUCCEEDED, ActionState.FAILED, ActionState.REFUSED}
    ),
    ActionState.SUCCEEDED: frozenset(),
    ActionState.FAILED: frozenset(),
    ActionState.CANCELLED: frozenset(),
    ActionState.DISMISSED: frozenset(),
    ActionState.EXPIRED: frozenset(),
    ActionState.REFUSED: frozenset(),
}


class Moment(TextChoices):
    """When an action begins."""

    NOW = "NOW", "right now"
    CHECKPOINT_FIRST = "CHECKPOINT_FIRST", "checkpoint first"
    NEXT_CHECKPOINT = "NEXT_CHECKPOINT", "at the next save"
    RUN_END = "RUN_END", "when the attempt ends by itself"


class Requeued(TextChoices):
    """What a restart does with a job that the scheduler put back into its queue by itself."""

    RELEASE = "RELEASE", "release it now"
    RESUBMIT = "RESUBMIT", "cancel it and submit anew"


AT_A_SAVE = (Moment.CHECKPOINT_FIRST, Moment.NEXT_CHECKPOINT)


class OrderKind(TextChoices):
    """What a launcher is told to do."""

    STOP = "STOP", "stop"
    LAUNCH = "LAUNCH", "launch"
    DRAIN = "DRAIN", "drain"
    RESUME = "RESUME", "resume"
    CHECK = "CHECK", "check"


OF_NODES = (OrderKind.DRAIN, OrderKind.RESUME, OrderKind.CHECK)
"""Orders about nodes: for the cluster's scheduler, or its check; the others are about a run, for its launcher."""


class OrderState(TextChoices):
    """How far an order has come. WAITING also between two looks at something that takes its time."""

    WAITING = "WAITING", "waiting"
    CLAIMED = "CLAIMED", "handed out"
    DONE = "DONE", "done"
    REFUSED = "REFUSED", "refused"
    FAILED = "FAILED", "failed"
    UNCERTAIN = "UNCERTAIN", "uncertain"
    CANCELLED = "CANCELLED", "cancelled"


class LauncherKind(TextChoices):
    """Who starts and stops a run's processes."""

    LOCAL = "LOCAL", "this machine"
    SLURM = "SLURM", "Slurm"
    WEBHOOK = "WEBHOOK", "webhook"
    KUBERNETES = "KUBERNETES", "Kubernetes"


class SchedulerKind(TextChoices):
    """What gives out a cluster's nodes."""

    SLURM = "SLURM", "Slurm"


class CheckKind(TextChoices):
    """How a cluster's nodes are checked."""

    COMMAND = "COMMAND", "a command on this machine"
    WEBHOOK = "WEBHOOK", "a webhook"


class DriftKind(TextChoices):
    """How our ledger and a cluster's scheduler disagree about a node."""

    IN_SERVICE = "IN_SERVICE", "in service although excluded"
    RESUMED = "RESUMED", "we drained it, the scheduler says in service"
    OTHERS = "OTHERS", "drained by someone else"
    LEFT = "LEFT", "still drained by us, in service in the ledger"
    RELEASED = "RELEASED", "came back in one go with others, its reason unanswered"


class Decision(TextChoices):
    """What people decide about a difference."""

    END = "END", "end our exclusion"
    DRAIN = "DRAIN", "drain again"
    TAKE = "TAKE", "take it over as observed"
    LIFT = "LIFT", "bring it back there too"
    EXCLUDE = "EXCLUDE", "exclude it ourselves"
    KEEP = "KEEP", "keep as is"


DECISIONS: dict[str, tuple[Decision, ...]] = {
    DriftKind.IN_SERVICE: (Decision.END, Decision.DRAIN, Decision.KEEP),
    DriftKind.RESUMED: (Decision.END, Decision.DRAIN, Decision.KEEP),
    DriftKind.OTHERS: (Decision.TAKE, Decision.KEEP),
    DriftKind.LEFT: (Decision.LIFT, Decision.KEEP),
    DriftKind.RELEASED: (Decision.EXCLUDE, Decision.KEEP),
}
"""Which decisions each difference allows: nobody else's reason is ever overwritten, nobody else's drain lifted."""


OPENED_FIRST = (LauncherKind.LOCAL, LauncherKind.SLURM)
"""Launchers whose attempt is opened before they are asked: what they start cannot be without one."""


class LaunchState(TextChoices):
    """Whether what was launched still runs, as last looked at."""

    ALIVE = "ALIVE", "running"
    GONE = "GONE", "gone"
