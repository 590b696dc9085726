"""Findings, and what each detector remembers of an attempt."""

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.diagnosis.choices import AnswerKind, CloseReason, FindingState
from apps.runs.models import Attempt, Run

CALLS_FOR_ACTION = models.Q(state=FindingState.OPEN, certainty="CONFIRMED", muted_for_good=False) & ~models.Q(
    proposal_kind="NONE"
)
"""What is open, sure, not dismissed, and says what to do."""


class Finding(models.Model):
    """One verdict about one subject of one attempt; it keeps its row to the end.

    `version` grows with every change that matters to others; `absorbed_version` and `considered_version` are how far
    incidents and remediation have read it. `considered_at`: when remediation looked last, in whatever version."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE)
    cause = models.CharField(max_length=48)
    class_name = models.CharField(max_length=12)
    level = models.CharField(max_length=8)
    state = models.CharField(max_length=6, choices=FindingState.choices, default=FindingState.OPEN)
    certainty = models.CharField(max_length=9)
    subject = models.JSONField()
    subject_key = models.CharField(max_length=300)
    place_key = models.CharField(max_length=300)
    victims = ArrayField(models.IntegerField(), default=list)
    score = models.FloatField()
    score_meaning = models.TextField()
    since_step = models.BigIntegerField(null=True)
    found_step = models.BigIntegerField(null=True)
    began_at = models.DateTimeField(null=True)
    found_at = models.DateTimeField()
    confirmed_at = models.DateTimeField(null=True)
    coverage_have = models.IntegerField()
    coverage_of = models.IntegerField()
    evidence = models.JSONField(default=list)
    verdict = models.TextField()
    why = models.TextField()
    next = models.TextField()
    proposal_kind = models.CharField(max_length=12)
    proposal_node = models.CharField(max_length=255, blank=True)
    cells = models.JSONField(default=list)
    cost_s = models.FloatField(null=True)
    incident_id = models.BigIntegerField(null=True, db_index=True)
    version = models.IntegerField(default=1)
    absorbed_version = models.IntegerField(default=0)
    considered_version = models.IntegerField(default=0)
    considered_at = models.DateTimeField(null=True)
    muted_until_at = models.DateTimeField(null=True)
    muted_for_good = models.BooleanField(default=False)
    mute_reason = models.TextField(blank=True)
    muted_by_name = models.CharField(max_length=150, blank=True)
    closed_at = models.DateTimeField(null=True)
    close_reason = models.CharField(max_length=13, choices=CloseReason.choices, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "cause", "subject_key"],
                condition=models.Q(state=FindingState.OPEN),
                name="diagnosis_finding_one_open",
            )
        ]
        indexes = [
            models.Index(fields=["run", "state", "-found_at"], name="diagnosis_finding_run"),
            models.Index(
                fields=["id"],
                condition=models.Q(absorbed_version__lt=models.F("version")),
                name="diagnosis_finding_unread",
            ),
            models.Index(
                fields=["id"],
                condition=models.Q(considered_version__lt=models.F("version")),
                name="diagnosis_finding_unconsidered",
            ),
            # What a proposal may yet come of: few rows, however many were found in months.
            models.Index(fields=["considered_at"], condition=CALLS_FOR_ACTION, name="diagnosis_finding_calls"),
        ]


class DetectorState(models.Model):
    """What a detector remembers of an attempt, how far it has read, and what it said last."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE)
    cause = models.CharField(max_length=48)
    memory = models.JSONField(default=dict)
    watermark = models.BigIntegerField(null=True)
    answer = models.CharField(max_length=9, choices=AnswerKind.choices, blank=True)
    have = models.JSONField(default=list)
    lack = models.JSONField(default=list)
    sentence = models.TextField(blank=True)
    evaluated_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "cause"], name="diagnosis_state_key")]
