"""Clusters, nodes, their names and places, GPUs, and the ledger of exclusions."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.fleet.choices import ExclusionOrigin, NodeState, TelemetryState


class Cluster(models.Model):
    """Nodes under one scheduler."""

    name = models.CharField(max_length=63, unique=True)
    zone = models.CharField(max_length=64, default="UTC")
    created_at = models.DateTimeField()
    next_slot = models.IntegerField(default=0)
    next_gpu_slot = models.IntegerField(default=0)


class Node(models.Model):
    """A machine; it outlives attempts. `slot` is its row in the cluster's node series and is never given to another."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    name = models.CharField(max_length=255)
    slot = models.IntegerField()
    rack = models.CharField(max_length=63, blank=True)
    rack_slot = models.CharField(max_length=63, blank=True)
    leaf = models.CharField(max_length=63, blank=True)
    created_at = models.DateTimeField()
    repaired_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="fleet_node_name"),
            models.UniqueConstraint(fields=["cluster", "slot"], name="fleet_node_slot"),
        ]


class NodeAlias(models.Model):
    """Another name of a node, and which source uses it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    node = models.ForeignKey(Node, on_delete=models.CASCADE)
    name = models.CharField(max_length=255)
    source = models.CharField(max_length=32)

    class Meta:
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
    `scheduler_state` intake and remediation · `state`, `exclusion_id` fleet's ledger · `open_incidents` incidents."""

    node = models.OneToOneField(Node, primary_key=True, on_delete=models.CASCADE, related_name="status")
    state = models.CharField(max_length=10, choices=NodeState.choices, default=NodeState.IN_SERVICE)
    exclusion_id = models.BigIntegerField(null=True)
    scheduler_state = models.CharField(max_length=63, blank=True)
    scheduler_read_at = models.DateTimeField(null=True)
    open_runs = ArrayField(models.BigIntegerField(), default=list)
    telemetry_state = models.CharField(max_length=8, choices=TelemetryState.choices, default=TelemetryState.NEVER)
    telemetry_last_at = models.DateTimeField(null=True)
    telemetry_gaps_24h = models.IntegerField(default=0)
    clock_skew_s = models.FloatField(null=True)
    open_incidents = models.IntegerField(default=0)
    version = models.BigIntegerField(default=0)


class Exclusion(models.Model):
    """One stay of a node outside service. The first reason is kept; rows are ended, never edited or deleted."""

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="exclusions")
    origin = models.CharField(max_length=8, choices=ExclusionOrigin.choices)
    reason = models.TextField()
    by_name = models.CharField(max_length=150)
    action_id = models.BigIntegerField(null=True)
    incident_id = models.BigIntegerField(null=True)
    began_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    ended_by_name = models.CharField(max_length=150, blank=True)
    ended_reason = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["node"], condition=models.Q(ended_at=None), name="fleet_exclusion_one_open")
        ]
        indexes = [models.Index(fields=["node", "-began_at"], name="fleet_exclusion_time")]
