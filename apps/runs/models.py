"""Runs, their attempts, which rank sat where, and their checkpoints."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.fleet.models import Cluster
from apps.runs.choices import AttemptState, Authority, EndReason, Mode, Trust


class Run(models.Model):
    """What is being trained, over weeks."""

    slug = models.CharField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT)
    team = models.CharField(max_length=63, blank=True)
    external_id = models.CharField(max_length=200, blank=True)
    model = models.JSONField(default=dict)
    layout = models.JSONField(default=dict)
    checkpoint = models.JSONField(default=dict)
    framework = models.JSONField(default=dict)
    tokens_per_step = models.BigIntegerField(null=True)
    gpu_model = models.CharField(max_length=100, blank=True)
    dtype = models.CharField(max_length=16, blank=True)
    gpus_per_node = models.IntegerField(null=True)
    steps_planned = models.BigIntegerField(null=True)
    tokens_planned = models.BigIntegerField(null=True)
    due_at = models.DateTimeField(null=True)
    mode = models.CharField(max_length=8, choices=Mode.choices, default=Mode.OBSERVE)
    modes = models.JSONField(default=dict)
    limits = models.JSONField(default=dict)
    launcher = models.JSONField(default=dict)
    practice = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()


class Attempt(models.Model):
    """One launch of a run on one set of ranks.

    `start_error`: the mistake with which its program ended before the first step, as its launcher heard it (remediation)."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    key = models.CharField(max_length=200)
    state = models.CharField(max_length=5, choices=AttemptState.choices, default=AttemptState.OPEN)
    reason = models.CharField(max_length=12, choices=EndReason.choices, blank=True)
    authority = models.CharField(max_length=9, choices=Authority.choices, blank=True)
    world_size = models.IntegerField(null=True)
    resumed_from_step = models.BigIntegerField(null=True)
    resume_confirmed = models.BooleanField(default=False)
    external_id = models.CharField(max_length=200, blank=True)
    config = models.JSONField(default=dict)
    code_version = models.CharField(max_length=100, blank=True)
    opened_by = models.CharField(max_length=150, blank=True)
    order_id = models.BigIntegerField(null=True)
    started_at = models.DateTimeField()
    first_step = models.BigIntegerField(null=True)
    last_step = models.BigIntegerField(null=True)
    first_step_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    start_error = models.CharField(max_length=300, blank=True)
    previous = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="runs_attempt_number"),
            models.UniqueConstraint(fields=["run", "key"], name="runs_attempt_key"),
            models.UniqueConstraint(fields=["run"], condition=models.Q(state="OPEN"), name="runs_attempt_one_open"),
        ]


class Placement(models.Model):
    """Which rank sits on which node and GPU, packed: arrays by rank, never a row per rank.

    `nodes` int64 node ids (0 = unknown), `local_ranks` and `stages` int32 (-1 = unknown), little-endian;
    `gpus` and `coords` JSON by rank, as far as senders told. `to_compare`: whether all have their place and nobody has
    looked yet which nodes of the attempt before are missing (remediation); null until all have one."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="placement")
    version = models.IntegerField(default=0)
    nodes = models.BinaryField()
    local_ranks = models.BinaryField()
    stages = models.BinaryField()
    gpus = models.JSONField(default=dict)
    coords = models.JSONField(default=dict)
    node_ids = ArrayField(models.BigIntegerField(), default=list)
    to_compare = models.BooleanField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["attempt"], condition=models.Q(to_compare=True), name="runs_placement_to_compare")
        ]


class Checkpoint(models.Model):
    """One save of a run at a step within an attempt."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.BigIntegerField()
    trust = models.CharField(max_length=8, choices=Trust.choices, default=Trust.PENDING)
    started_at = models.DateTimeField()
    saved_at = models.DateTimeField(null=True)
    duration_s = models.FloatField(null=True)
    queue_s = models.FloatField(null=True)
    blocking_s = models.FloatField(null=True)
    fastest_s = models.FloatField(null=True)
    bytes = models.BigIntegerField(null=True)
    shards_written = models.IntegerField(default=0)
    slowest_rank = models.IntegerField(null=True)
    error = models.TextField(blank=True)
    restored_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "step"], name="runs_checkpoint_step")]
        indexes = [models.Index(fields=["run", "-step"], name="runs_checkpoint_newest")]


class Doubt(models.Model):
    """From which step on an attempt's saves are suspect, so that one that is told of late, when another attempt runs, is
    too. A row of its own: diagnosis writes it and must not wait for whoever has the attempt's."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="doubt")
    from_step = models.BigIntegerField()


class RunStatus(models.Model):
    """What is true of a run now. Writers:
    runs: `attempt_id`, `attempt_state`, `attempt_ended_reason`, `checkpoint_*`, `resumed_from_step`, `attempt_started_at` ·
    telemetry: `step`, `first_step`, `step_s`, `tokens_per_s`, `loss`, `last_report_at`, `ranks_reporting`, `series_version` ·
    diagnosis: `own_best_step_s`, `hang`, `slow`, `silent`, `slow_since_at`, `suspect_from_step` ·
    incidents: `open_incidents` · remediation: `open_action_id`, `open_action_kind`, `stopping_as`, `gave_up`, `queued`.

    `stopping_as`: an order to stop the open attempt is out, and it ends with this reason."""

    run = models.OneToOneField(Run, primary_key=True, on_delete=models.CASCADE, related_name="status")
    version = models.BigIntegerField(default=0)
    attempt_id = models.BigIntegerField(null=True)
    attempt_number = models.IntegerField(default=0)
    attempt_state = models.CharField(max_length=5, blank=True)
    attempt_ended_reason = models.CharField(max_length=12, blank=True)
    attempt_started_at = models.DateTimeField(null=True)
    resumed_from_step = models.BigIntegerField(null=True)
    checkpoint_step = models.BigIntegerField(null=True)
    checkpoint_at = models.DateTimeField(null=True)
    checkpoint_trust = models.CharField(max_length=8, blank=True)
    step = models.BigIntegerField(null=True)
    first_step = models.BigIntegerField(null=True)
    step_s = models.FloatField(null=True)
    tokens_per_s = models.FloatField(null=True)
    loss = models.FloatField(null=True)
    last_report_at = models.DateTimeField(null=True)
    ranks_reporting = models.IntegerField(null=True)
    series_version = models.BigIntegerField(default=0)
    own_best_step_s = models.FloatField(null=True)
    hang = models.CharField(max_length=9, blank=True)
    slow = models.BooleanField(default=False)
    slow_since_at = models.DateTimeField(null=True)
    silent = models.BooleanField(default=False)
    suspect_from_step = models.BigIntegerField(null=True)
    open_incidents = models.IntegerField(default=0)
    open_action_id = models.BigIntegerField(null=True)
    open_action_kind = models.CharField(max_length=16, blank=True)
    stopping_as = models.CharField(max_length=12, blank=True)
    gave_up = models.BooleanField(default=False)
    queued = models.BooleanField(default=False)
