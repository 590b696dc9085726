"""The tables of telemetry, private to it. Values stand in packed blobs; `FORMAT.md` of the engine describes them."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.telemetry.choices import FactKind, OwnerKind, Reason, ScopeKind, SeriesKind, Which


class Inbox(models.Model):
    """A report as it was accepted, until it is folded. Beats and exits have columns of their own: the clock-driven
    checks read them before the fold does. No unique index: the fold drops repeats."""

    owner_kind = models.CharField(max_length=7, choices=OwnerKind.choices)
    owner_id = models.BigIntegerField()
    scope_kind = models.CharField(max_length=7, choices=ScopeKind.choices)
    scope_id = models.BigIntegerField()
    sender = models.CharField(max_length=255)
    boot = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    received_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    newest_step = models.BigIntegerField(null=True)
    beats = models.BinaryField(null=True)
    exits = models.BinaryField(null=True)
    body = models.BinaryField()

    class Meta:
        indexes = [
            models.Index(fields=["owner_kind", "owner_id", "id"], name="telemetry_inbox_owner"),
            models.Index(fields=["owner_id"], condition=models.Q(exits__isnull=False), name="telemetry_inbox_exits"),
        ]


class FoldCall(models.Model):
    """A fold that was asked for and has not begun: at most one an owner."""

    owner_kind = models.CharField(max_length=7, choices=OwnerKind.choices)
    owner_id = models.BigIntegerField()
    asked_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner_kind", "owner_id"], name="telemetry_foldcall_key")]


class FoldStop(models.Model):
    """An owner of whose waiting reports none could be folded: the fault is ours. They wait, and are tried again at
    `until_at`, each time later; the row goes with the first fold that goes well."""

    owner_kind = models.CharField(max_length=7, choices=OwnerKind.choices)
    owner_id = models.BigIntegerField()
    tries = models.IntegerField()
    began_at = models.DateTimeField()
    until_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner_kind", "owner_id"], name="telemetry_foldstop_key")]


class News(models.Model):
    """An attempt that was over when reports of it were folded: nobody has looked at them. `version` grows with each fold."""

    attempt_id = models.BigIntegerField(unique=True)
    version = models.BigIntegerField(default=1)


class DoorBeat(models.Model):
    """The heartbeat of one process's report door; `accepting_since` is null while it cannot accept."""

    instance = models.CharField(max_length=64, unique=True)
    accepting_since = models.DateTimeField(null=True)
    last_beat_at = models.DateTimeField()
    inbox_rows = models.BigIntegerField(default=0)
    inbox_bytes = models.BigIntegerField(default=0)
    oldest_received_at = models.DateTimeField(null=True)


class Folded(models.Model):
    """What is folded of one process that was a sender. `seqs` int8multirange is added by the migration.

    `beats` holds its newest beat of each rank (services/beats.py). `offset_*` is the smallest `received_at − sent_at`
    of the present and the previous five minutes."""

    scope_kind = models.CharField(max_length=7, choices=ScopeKind.choices)
    scope_id = models.BigIntegerField()
    sender = models.CharField(max_length=255)
    boot = models.CharField(max_length=64)
    highest = models.BigIntegerField()
    first_heard_at = models.DateTimeField()
    last_received_at = models.DateTimeField()
    last_sent_at = models.DateTimeField(null=True)
    reports = models.BigIntegerField(default=0)
    rewritten = models.BigIntegerField(default=0)
    node_id = models.BigIntegerField(null=True)
    offset_s = models.FloatField(null=True)
    offset_before_s = models.FloatField(null=True)
    offset_began_at = models.DateTimeField(null=True)
    drops = models.JSONField(default=dict)
    boot_id = models.CharField(max_length=64, blank=True)
    beats = models.BinaryField(default=b"")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["scope_kind", "scope_id", "sender", "boot"], name="telemetry_folded_key")
        ]


class Series(models.Model):
    """All metrics of one attempt's ranks, of one cluster's GPU slots or of its nodes.

    `version` grows with each write. Columns up to `settled_step` are settled. Columns below `hot_floor` are sealed:
    values for them go to patches. `far_ranks` is a bitmap of the ranks that report a step too far ahead."""

    kind = models.CharField(max_length=4, choices=SeriesKind.choices)
    owner_id = models.BigIntegerField()
    version = models.BigIntegerField(default=0)
    width = models.IntegerField(default=0)
    first_step = models.BigIntegerField(null=True)
    last_step = models.BigIntegerField(null=True)
    settled_step = models.BigIntegerField(null=True)
    hot_floor = models.BigIntegerField(default=0)
    filled = models.BigIntegerField(default=0)
    rewritten = models.BigIntegerField(default=0)
    nonfinite = models.BigIntegerField(default=0)
    senders = models.IntegerField(default=0)
    far_ranks = models.BinaryField(null=True)
    changed_at = models.DateTimeField()
    closed = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "owner_id"], name="telemetry_series_key")]


class SeriesMetric(models.Model):
    """A metric's number inside its series."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE)
    number = models.IntegerField()
    name = models.CharField(max_length=63)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["series", "number"], name="telemetry_metric_number"),
            models.UniqueConstraint(fields=["series", "name"], name="telemetry_metric_name"),
        ]


class SeriesOrder(models.Model):
    """The stage and node of each rank that a version of the stage-node order was made from: int32 by rank."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE)
    version = models.CharField(max_length=16)
    stages = models.BinaryField()
    nodes = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "version"], name="telemetry_order_key")]


class HotBlock(models.Model):
    """All metrics of up to 1,024 entities in one column; `present` counts the entities that have any value.

    `metrics` and `width` repeat the blob's head, so that one metric can be read as a slice of it."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, db_index=False)
    block = models.IntegerField()
    col = models.BigIntegerField()
    version = models.BigIntegerField()
    present = models.IntegerField()
    metrics = ArrayField(models.IntegerField())
    width = models.IntegerField()
    data = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "col", "block"], name="telemetry_hot_key")]


class Patch(models.Model):
    """Values that came after their tile was sealed; append-only, laid over the tile by readers, merged by the sealer."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, db_index=False)
    tile = models.BigIntegerField()
    block = models.IntegerField()
    version = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        indexes = [models.Index(fields=["series", "tile", "block", "id"], name="telemetry_patch_tile")]


class Tile(models.Model):
    """A sealed rectangle of one metric: level 0 holds values, higher levels pooled ones. `level_columns` and
    `level_entities` say how far it is pooled; `ratio` that it holds value / median of peers."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, db_index=False)
    metric = models.IntegerField()
    ratio = models.BooleanField(default=False)
    level_columns = models.SmallIntegerField(default=0)
    level_entities = models.SmallIntegerField(default=0)
    tile = models.BigIntegerField()
    block = models.IntegerField()
    version = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["series", "metric", "ratio", "level_columns", "level_entities", "tile", "block"],
                name="telemetry_tile_key",
            )
        ]
        indexes = [
            models.Index(
                fields=["series", "version"],
                condition=models.Q(ratio=False, level_columns=0, level_entities=0),
                name="telemetry_tile_changed",
            )
        ]


class Column(models.Model):
    """What is known of one step of an attempt besides its values. `ended` holds the senders' `ended_at` as float64
    seconds until the column settles and keeps their median."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, db_index=False)
    step = models.BigIntegerField()
    first_received_at = models.DateTimeField()
    ranks = models.IntegerField(default=0)
    version = models.BigIntegerField()
    ended = models.BinaryField(default=b"")
    ended_at = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["series", "step"], name="telemetry_column_key")]


class NonFinite(models.Model):
    """A value that was produced but is not finite; its cell is absent. Bounded per step and per series."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, db_index=False, related_name="+")
    step = models.BigIntegerField()
    metric = models.IntegerField()
    rank = models.IntegerField()
    which = models.CharField(max_length=4, choices=Which.choices)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["series", "step", "metric", "rank"], name="telemetry_nonfinite_key")
        ]


class Refusal(models.Model):
    """What was not taken over of a sender's reports for one reason: how often, and the first sample."""

    scope_kind = models.CharField(max_length=7, choices=ScopeKind.choices)
    scope_id = models.BigIntegerField()
    sender = models.CharField(max_length=255)
    reason = models.CharField(max_length=16, choices=Reason.choices)
    count = models.BigIntegerField()
    sample = models.TextField()
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["scope_kind", "scope_id", "sender", "reason"], name="telemetry_refusal_key")
        ]


class Fact(models.Model):
    """Something that was told: an exit, a log line, an XID. Repeats of a text within a window raise `count`;
    `told` is how many of them the log has."""

    attempt_id = models.BigIntegerField(null=True)
    node_id = models.BigIntegerField(null=True)
    kind = models.CharField(max_length=5, choices=FactKind.choices)
    fingerprint = models.BinaryField(max_length=16)
    happened_at = models.DateTimeField()
    received_at = models.DateTimeField()
    last_at = models.DateTimeField()
    until_at = models.DateTimeField()
    rank = models.IntegerField(null=True)
    text = models.TextField(blank=True)
    code = models.IntegerField(null=True)
    signal = models.IntegerField(null=True)
    payload = models.JSONField(default=dict)
    current = models.BooleanField()
    count = models.BigIntegerField(default=1)
    told = models.BigIntegerField(default=1)

    class Meta:
        indexes = [
            models.Index(fields=["attempt_id", "id"], name="telemetry_fact_attempt"),
            models.Index(fields=["attempt_id", "id"], condition=models.Q(kind="EXIT"), name="telemetry_fact_exits"),
            models.Index(fields=["node_id", "id"], name="telemetry_fact_node"),
            models.Index(fields=["fingerprint", "-until_at"], name="telemetry_fact_text"),
            models.Index(
                fields=["until_at"], condition=models.Q(count__gt=models.F("told")), name="telemetry_fact_untold"
            ),
        ]


class Stack(models.Model):
    """The newest Python stack that a rank sent of itself."""

    attempt_id = models.BigIntegerField()
    rank = models.IntegerField()
    happened_at = models.DateTimeField()
    text = models.TextField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt_id", "rank"], name="telemetry_stack_key")]
