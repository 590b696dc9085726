"""Actions, the orders they are carried out by, what was launched, and each cluster's guards."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.fleet.models import Cluster, Node
from apps.journal.choices import Source
from apps.remediation.choices import (
    OPEN,
    SETTLES,
    ActionKind,
    ActionState,
    CheckKind,
    DriftKind,
    LauncherKind,
    LaunchState,
    OrderKind,
    OrderState,
    SchedulerKind,
)
from apps.runs.choices import EndReason
from apps.runs.models import Run


class Action(models.Model):
    """What somebody wants done, who, why, what they saw, and how far it has come.

    `ends_as` is the reason with which the stopped attempt ends. `attempt_id` is the attempt that this action opened,
    `resume_step` the step it shall start from. `milestones` are the stepper's rows: `{name, at, text}` in order.
    """

    kind = models.CharField(max_length=16, choices=ActionKind.choices)
    state = models.CharField(max_length=10, choices=ActionState.choices)
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE, related_name="+")
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="+")
    reason = models.TextField()
    requested_by = models.CharField(max_length=150)
    requested_by_key = models.CharField(max_length=64)
    source = models.CharField(max_length=8, choices=Source.choices)
    requested_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    expected_attempt_id = models.BigIntegerField(null=True)
    expected_state = models.CharField(max_length=10, blank=True)
    ends_as = models.CharField(max_length=12, choices=EndReason.choices, default=EndReason.PLANNED)
    options = models.JSONField(default=dict)
    price = models.JSONField(default=dict)
    attempt_id = models.BigIntegerField(null=True)
    resume_step = models.BigIntegerField(null=True)
    incident_id = models.BigIntegerField(null=True)
    finding_id = models.BigIntegerField(null=True)
    proposal_key = models.CharField(max_length=400, blank=True)
    decided_by = models.CharField(max_length=150, blank=True)
    outcome = models.TextField(blank=True)
    milestones = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run"], condition=models.Q(state__in=OPEN), name="remediation_one_open_action_a_run"
            ),
            models.UniqueConstraint(
                fields=["proposal_key"],
                condition=models.Q(state=ActionState.PROPOSED) & ~models.Q(proposal_key=""),
                name="remediation_one_proposal",
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=ActionState.values), name="remediation_action_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(run__isnull=False) | models.Q(node__isnull=False), name="remediation_action_about"
            ),
        ]
        indexes = [
            models.Index(fields=["run", "-id"], name="remediation_action_run"),
            models.Index(fields=["node", "-id"], name="remediation_action_node"),
            models.Index(
                fields=["state"],
                condition=models.Q(state__in=(*OPEN, ActionState.PROPOSED)),
                name="remediation_action_live",
            ),
            models.Index(
                fields=["proposal_key"],
                condition=models.Q(state__in=SETTLES) & ~models.Q(proposal_key=""),
                name="remediation_action_settles",
            ),
            models.Index(fields=["ended_at"], name="remediation_action_ended"),
        ]


class ActionNode(models.Model):
    """A node that an action names; `holds` while the action is open, so that no two open ones name the same node."""

    action = models.ForeignKey(Action, on_delete=models.CASCADE, related_name="nodes")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    holds = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["action", "node"], name="remediation_action_node_once"),
            models.UniqueConstraint(
                fields=["node"], condition=models.Q(holds=True), name="remediation_one_open_action_a_node"
            ),
        ]


class Order(models.Model):
    """One thing handed to a launcher, and what came of it. `tries` counts how often it was handed out.

    `claim` names the try that is in hand, `holder` the process that has it in hand; `asked_at` is when the launcher first
    took it; `attempt_id` is the attempt that is to be stopped or started.
    """

    action = models.ForeignKey(Action, on_delete=models.CASCADE, related_name="orders")
    kind = models.CharField(max_length=8, choices=OrderKind.choices)
    launcher = models.CharField(max_length=10, choices=LauncherKind.choices)
    state = models.CharField(max_length=9, choices=OrderState.choices, default=OrderState.WAITING)
    attempt_id = models.BigIntegerField(null=True)
    tries = models.IntegerField(default=0)
    claim = models.CharField(max_length=32, blank=True)
    holder = models.CharField(max_length=200, blank=True)
    claimed_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)
    not_before = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    receipt = models.JSONField(default=dict)
    error = models.TextField(blank=True)
    token_id = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["action"],
                condition=models.Q(state__in=(OrderState.WAITING, OrderState.CLAIMED, OrderState.UNCERTAIN)),
                name="remediation_one_order_in_hand",
            )
        ]
        indexes = [
            models.Index(
                fields=["not_before"],
                condition=models.Q(state__in=(OrderState.WAITING, OrderState.CLAIMED, OrderState.UNCERTAIN)),
                name="remediation_order_due",
            )
        ]


class Launch(models.Model):
    """A process (or a job elsewhere) that an order started. A process is the one of this boot, namespace, pid and start.

    A job outlives attempts: `attempt_id` is the one it runs as now. `running_at` is when a queued job was first seen to run.
    """

    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="launch")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    attempt_id = models.BigIntegerField(unique=True)
    launcher = models.CharField(max_length=10, choices=LauncherKind.choices)
    state = models.CharField(max_length=5, choices=LaunchState.choices, default=LaunchState.ALIVE)
    directory = models.TextField(blank=True)
    boot_id = models.CharField(max_length=36, blank=True)
    pid_namespace = models.CharField(max_length=64, blank=True)
    pid = models.BigIntegerField(null=True)
    start_ticks = models.BigIntegerField(null=True)
    external_id = models.CharField(max_length=200, blank=True)
    token_id = models.BigIntegerField(null=True)
    started_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    exit_status = models.IntegerField(null=True)
    exit_signal = models.IntegerField(null=True)
    last_words = models.TextField(blank=True)
    exit_note = models.CharField(max_length=300, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["run", "-id"], name="remediation_launch_run"),
            models.Index(
                fields=["state"], condition=models.Q(state=LaunchState.ALIVE), name="remediation_launch_alive"
            ),
        ]


class Guard(models.Model):
    """A cluster's limits on what people and policies may do at a stretch; no row means the defaults."""

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="+")
    window_s = models.IntegerField()
    exclusions_per_window = models.IntegerField()
    share_of_run = models.FloatField()
    updated_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField()


class SchedulerSetting(models.Model):
    """A cluster's scheduler: where its programs are and what Paceline may do there, and how it was last read.

    `next_read_at` is also the claim of whoever reads: it is pushed ahead before a read begins.
    """

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=10, choices=SchedulerKind.choices, default=SchedulerKind.SLURM)
    conf = models.CharField(max_length=1000, blank=True)
    programs = models.CharField(max_length=1000, blank=True)
    zone = models.CharField(max_length=64, default="UTC")
    poll_s = models.FloatField(default=5.0)
    drains = models.BooleanField(default=True)
    updated_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField()
    next_read_at = models.DateTimeField()
    read_at = models.DateTimeField(null=True)
    failures = models.IntegerField(default=0)
    error = models.TextField(blank=True)


class CheckSetting(models.Model):
    """How a cluster's nodes are checked: a list of words to run, or an address to ask; no row means not at all.

    `valid_s` is how long a passed check counts; `required` says whether taking a node back asks for one.
    """

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=7, choices=CheckKind.choices)
    command = ArrayField(models.TextField(), default=list)
    url = models.TextField(blank=True)
    secret = models.TextField(blank=True)
    timeout_s = models.FloatField()
    valid_s = models.IntegerField()
    required = models.BooleanField(default=False)
    updated_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField()


class SchedulerJob(models.Model):
    """A run's job in its cluster's scheduler, as last told; `told_at` is the moment that the scheduler spoke of.

    `name`: under which it was seen first. A controller that lost its state gives numbers out again, so that another job
    may have this one's by now.
    `nodes_asked` is the least number of nodes with which it would begin, `partitions` where it may run.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    job_id = models.BigIntegerField()
    name = models.CharField(max_length=300, blank=True)
    restarts = models.IntegerField(default=0)
    state = models.CharField(max_length=32)
    reason = models.CharField(max_length=300, blank=True)
    held = models.BooleanField(default=False)
    nodes = models.TextField(blank=True)
    exc_nodes = models.TextField(blank=True)
    nodes_asked = models.IntegerField(null=True)
    partitions = ArrayField(models.TextField(), default=list)
    eligible_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    told_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "job_id"], name="remediation_scheduler_job"),
        ]
        indexes = [models.Index(fields=["run", "-told_at"], name="remediation_job_of_run")]


class NodeDrain(models.Model):
    """What stands in the scheduler because of one exclusion of ours: that we drained the node, or that others had."""

    exclusion_id = models.BigIntegerField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    mark = models.CharField(max_length=120)
    drained_at = models.DateTimeField()
    lifted_at = models.DateTimeField(null=True)


class Drift(models.Model):
    """Our ledger and the scheduler disagree about a node, from `began_at` until `ended_at`; people decide what holds.

    `kept_by_name` decided to leave it so, until `kept_until_at` or for as long as it lasts.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=10, choices=DriftKind.choices)
    exclusion_id = models.BigIntegerField(null=True)
    scheduler_state = models.CharField(max_length=63)
    reason = models.TextField(blank=True)
    by_name = models.CharField(max_length=150, blank=True)
    began_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    kept_by_name = models.CharField(max_length=150, blank=True)
    kept_until_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["node"], condition=models.Q(ended_at=None), name="remediation_one_open_drift_a_node"
            )
        ]


class SchedulerTold(models.Model):
    """Up to which moment a cluster's scheduler has told about its nodes, by whichever door; older listings change nothing."""

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="+")
    nodes_at = models.DateTimeField()
