"""The append-only log: one row per event, numbered densely in each stream."""

from django.db import models

from apps.journal.choices import Source, StreamKind


class Stream(models.Model):
    """The last number given out in one stream."""

    stream_kind = models.CharField(max_length=8, choices=StreamKind.choices)
    stream_id = models.BigIntegerField()
    seq = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["stream_kind", "stream_id"], name="journal_stream_key")]


class Event(models.Model):
    """What happened, who says so, and when. Never changed and never deleted but by a purge."""

    stream_kind = models.CharField(max_length=8, choices=StreamKind.choices)
    stream_id = models.BigIntegerField()
    seq = models.BigIntegerField()
    happened_at = models.DateTimeField()
    recorded_at = models.DateTimeField()
    uncertainty_s = models.FloatField(null=True)
    kind = models.CharField(max_length=48)
    source = models.CharField(max_length=8, choices=Source.choices)
    actor_name = models.CharField(max_length=150, blank=True)
    subject = models.JSONField(default=dict)
    payload = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["stream_kind", "stream_id", "seq"], name="journal_event_key")]
        indexes = [models.Index(fields=["stream_kind", "stream_id", "happened_at"], name="journal_event_time")]
