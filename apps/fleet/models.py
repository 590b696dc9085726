"""Clusters, nodes, their names and places, GPUs, and the ledger of exclusions."""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.fleet.choices import AtUntil, ExclusionOrigin, NodeState, NoteKind, TelemetryState


def short_of(name: str) -> str:
    """Return the first label of a name, in small letters, by which spellings of one machine are found.

    What ends in digits alone is no domain: an address, or a number.

    >>> short_of("TRN001.site.example"), short_of("10.0.0.7"), short_of("node.1")
    ('trn001', '10.0.0.7', 'node.1')
    """
    folded = name.casefold()
    head, _, domain = folded.partition(".")
    return folded if not domain or not head or domain.rpartition(".")[2].isdecimal() else head


class Cluster(models.Model):
    """Nodes under one scheduler."""

    name = models.CharField(max_length=63, unique=True)
    zone = models.CharField(max_length=64, default="UTC")
    created_at = models.DateTimeField()
    next_slot = models.IntegerField(default=0)
    next_gpu_slot = models.IntegerField(default=0)


class Node(models.Model):
    """A machine; it outlives attempts. `slot` is its row in the cluster's node series and is never given to another.

    `short` is `short_of(name)`. `merged_into` is set where somebody said that it was another name of that node: its
    record stays, what comes goes there. `apart_at` is when somebody said that it is a machine of its own.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    name = models.CharField(max_length=255)
    short = models.CharField(max_length=255, default="")
    slot = models.IntegerField()
    rack = models.CharField(max_length=63, blank=True)
    rack_slot = models.CharField(max_length=63, blank=True)
    leaf = models.CharField(max_length=63, blank=True)
    created_at = models.DateTimeField()
    repaired_at = models.DateTimeField(null=True)
    merged_into = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="+")
    apart_at = models.DateTimeField(null=True)

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.short = short_of(self.name)
        super().save(*args, **kwargs)

    class Meta:
        indexes = [models.Index(fields=["short", "cluster"], name="fleet_node_short")]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="fleet_node_name"),
            models.UniqueConstraint(fields=["cluster", "slot"], name="fleet_node_slot"),
        ]


class NodeAlias(models.Model):
    """Another name of a node, and which source uses it. `by_name` said so, nobody where the rule of names did."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    node = models.ForeignKey(Node, on_delete=models.CASCADE)
    name = models.CharField(max_length=255)
    short = models.CharField(max_length=255, default="")
    source = models.CharField(max_length=32)
    by_name = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(null=True)

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.short = short_of(self.name)
        super().save(*args, **kwargs)

    class Meta:
        indexes = [models.Index(fields=["short", "cluster"], name="fleet_alias_short")]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="fleet_alias_name")]


class Gpu(models.Model):
    """A device: `key` is its UUID or full PCI id; an index is only a label. `slot` is its row in the GPU series."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE)
    key = models.CharField(max_length=64)
    pci = models.CharField(max_length=32, blank=True)
    index = models.IntegerField(null=True)
    model = models.CharField(max_length=100, blank=True)
    slot = models.IntegerField()
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "key"], name="fleet_gpu_key")]


class NodeStatus(models.Model):
    """What is true of a node now. Writers: `open_runs` runs · `telemetry_*`, `clock_skew_s` telemetry ·
    `scheduler_*`, `partitions` intake and remediation · `state`, `exclusion_id` fleet's ledger · `open_incidents` incidents."""

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="status")
    state = models.CharField(max_length=10, choices=NodeState.choices, default=NodeState.IN_SERVICE)
    exclusion_id = models.BigIntegerField(null=True)
    scheduler_state = models.CharField(max_length=63, blank=True)
    scheduler_read_at = models.DateTimeField(null=True)
    partitions = ArrayField(models.TextField(), default=list)
    open_runs = ArrayField(models.BigIntegerField(), default=list)
    telemetry_state = models.CharField(max_length=8, choices=TelemetryState.choices, default=TelemetryState.NEVER)
    telemetry_last_at = models.DateTimeField(null=True)
    telemetry_gaps_24h = models.IntegerField(default=0)
    clock_skew_s = models.FloatField(null=True)
    open_incidents = models.IntegerField(default=0)
    version = models.BigIntegerField(default=0)


class Exclusion(models.Model):
    """One stay of a node outside service. The first reason is kept; rows are ended, never edited or deleted.

    A trigger sees to that. What is said later (kept longer, asked about, checked) is a `LedgerNote`.
    """

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="exclusions")
    origin = models.CharField(max_length=8, choices=ExclusionOrigin.choices)
    reason = models.TextField()
    by_name = models.CharField(max_length=150)
    action_id = models.BigIntegerField(null=True)
    incident_id = models.BigIntegerField(null=True)
    began_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True)
    at_until = models.CharField(max_length=3, choices=AtUntil.choices, default=AtUntil.END)
    ended_at = models.DateTimeField(null=True)
    ended_by_name = models.CharField(max_length=150, blank=True)
    ended_reason = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=models.Q(ended_at=None), name="fleet_exclusion_one_open")
        ]
        indexes = [models.Index(fields=["node", "-began_at"], name="fleet_exclusion_time")]


class LedgerNote(models.Model):
    """A later line of the ledger about a node, under the exclusion that was open then; never changed (a trigger sees to it).

    `until_at`: until when it is kept out, or until when a check that passed counts.
    """

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="+")
    exclusion = models.ForeignKey(Exclusion, null=True, on_delete=models.PROTECT, related_name="notes")
    kind = models.CharField(max_length=10, choices=NoteKind.choices)
    at = models.DateTimeField()
    by_name = models.CharField(max_length=150)
    text = models.TextField()
    until_at = models.DateTimeField(null=True)
    action_id = models.BigIntegerField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["node", "-id"], name="fleet_note_node"),
            models.Index(fields=["exclusion", "-id"], name="fleet_note_exclusion"),
        ]
