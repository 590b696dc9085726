"""Incidents, what people write into them, and the notices they send."""

from django.db import models

from apps.fleet.models import Cluster
from apps.incidents.choices import UNRESOLVED, Answer, Channel, IncidentState, NoticeKind, NoticeState
from apps.journal.choices import StreamKey
from apps.runs.models import Run


class IncidentNumber(models.Model):
    """The last number given out; one row, so that numbers have no holes."""

    last = models.BigIntegerField(default=0)


class Incident(models.Model):
    """What people deal with: one per origin. At most one unresolved per run (or cluster) and place."""

    number = models.BigIntegerField(unique=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    run = models.ForeignKey(Run, null=True, on_delete=models.CASCADE)
    attempt_id = models.BigIntegerField(null=True)
    place_key = models.CharField(max_length=300)
    node_id = models.BigIntegerField(null=True)
    state = models.CharField(max_length=12, choices=IncidentState.choices, default=IncidentState.OPEN)
    class_name = models.CharField(max_length=12)
    cause = models.CharField(max_length=48)
    level = models.CharField(max_length=8)
    certainty = models.CharField(max_length=9)
    subject = models.JSONField(default=dict)
    title = models.TextField()
    lead_finding_id = models.BigIntegerField(null=True)
    owner_name = models.CharField(max_length=150, blank=True)
    began_at = models.DateTimeField()
    found_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by_name = models.CharField(max_length=150, blank=True)
    mitigated_at = models.DateTimeField(null=True)
    resolved_at = models.DateTimeField(null=True)
    resolved_by_name = models.CharField(max_length=150, blank=True)
    resolution = models.TextField(blank=True)
    answer = models.CharField(max_length=9, choices=Answer.choices, blank=True)
    count = models.IntegerField(default=0)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    calm_since_at = models.DateTimeField(null=True)
    calm_attempt_id = models.BigIntegerField(null=True)
    calm_step = models.BigIntegerField(null=True)
    again_attempt_id = models.BigIntegerField(null=True)  # the attempt it came back in, until people were told
    gpu_hours_lost = models.FloatField(null=True)
    previous = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    notified_level = models.CharField(max_length=8, blank=True)
    version = models.BigIntegerField(default=1)

    @property
    def stream(self) -> StreamKey:
        """Return the log stream it is told in: its run's, or its cluster's where there is no run."""
        return StreamKey.run(self.run_id) if self.run_id is not None else StreamKey.cluster(self.cluster_id)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "place_key"],
                condition=models.Q(state__in=UNRESOLVED, run__isnull=False),
                name="incidents_one_open_per_place",
            ),
            models.UniqueConstraint(
                fields=["cluster", "place_key"],
                condition=models.Q(state__in=UNRESOLVED, run__isnull=True),
                name="incidents_one_open_per_cluster_place",
            ),
        ]
        indexes = [models.Index(fields=["state", "-number"], name="incidents_state")]


class Note(models.Model):
    """What a person wrote into a timeline, at the moment it is about."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="notes")
    happened_at = models.DateTimeField()
    written_at = models.DateTimeField()
    author_key = models.CharField(max_length=64)
    author_name = models.CharField(max_length=150)
    source = models.CharField(max_length=8)
    text = models.TextField()
    pinned = models.BooleanField(default=False)
    version = models.IntegerField(default=1)
    edited_at = models.DateTimeField(null=True)


class NoteVersion(models.Model):
    """What a note said before it was edited."""

    note = models.ForeignKey(Note, on_delete=models.CASCADE, related_name="versions")
    version = models.IntegerField()
    text = models.TextField()
    happened_at = models.DateTimeField()
    replaced_at = models.DateTimeField()
    replaced_by_name = models.CharField(max_length=150)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["note", "version"], name="incidents_note_version")]


class NoticeTarget(models.Model):
    """A webhook that is told; e-mail goes to every operator and admin who has an address."""

    name = models.CharField(max_length=100)
    url = models.URLField(max_length=500)
    secret = models.CharField(max_length=200)
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField()


class Notice(models.Model):
    """One message to one place: written in the transaction of what it tells, sent at least once."""

    incident = models.ForeignKey(Incident, null=True, on_delete=models.CASCADE, related_name="notices")
    kind = models.CharField(max_length=9, choices=NoticeKind.choices)
    channel = models.CharField(max_length=7, choices=Channel.choices)
    target = models.ForeignKey(NoticeTarget, null=True, on_delete=models.CASCADE)
    dedupe_key = models.CharField(max_length=120, unique=True)
    payload = models.JSONField()
    state = models.CharField(max_length=7, choices=NoticeState.choices, default=NoticeState.PENDING)
    tries = models.IntegerField(default=0)
    next_try_at = models.DateTimeField()
    created_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["next_try_at"], condition=models.Q(state=NoticeState.PENDING), name="incidents_notice_due"
            )
        ]


class Watch(models.Model):
    """Whether Paceline itself could hear when it last asked itself; one row."""

    blind_since_at = models.DateTimeField(null=True)
    checked_at = models.DateTimeField()
