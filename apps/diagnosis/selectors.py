"""Reading findings."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Q, QuerySet

from apps.common.errors import NotFound
from apps.diagnosis.models import CALLS_FOR_ACTION, DetectorState, Finding
from apps.engine.readers.start_errors import start_error
from apps.runs.choices import Mode
from apps.runs.selectors import AttemptRow
from apps.telemetry.selectors import facts_of

START_KINDS = ("log", "exit", "note")
"""Facts in which a program says why it cannot start."""

SET_IN = timedelta(seconds=10)
"""Between the moment that somebody who sets a run notes, and the one at which others can read it."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding as other rooms see it (CONTRACT, Findings and incidents). `world_size` is of the attempt that it is of."""

    id: int
    run_id: int
    run: str
    attempt_id: int
    world_size: int | None
    cause: str
    class_name: str
    level: str
    state: str
    certainty: str
    subject: dict[str, Any]
    place_key: str
    victims: tuple[int, ...]
    score: float
    score_meaning: str
    since_step: int | None
    found_step: int | None
    began_at: datetime | None
    found_at: datetime
    confirmed_at: datetime | None
    coverage_have: int
    coverage_of: int
    evidence: list[dict[str, Any]]
    verdict: str
    why: str
    next: str
    proposal_kind: str
    proposal_node: str
    cells: list[dict[str, Any]]
    cost_s: float | None
    incident_id: int | None
    version: int
    considered_version: int
    considered_at: datetime | None
    muted_until_at: datetime | None
    muted_for_good: bool
    mute_reason: str
    muted_by_name: str
    closed_at: datetime | None
    close_reason: str

    def muted(self, now: datetime) -> bool:
        """Return whether people asked for quiet about it at this moment."""
        return self.muted_for_good or (self.muted_until_at is not None and self.muted_until_at > now)


@dataclass(frozen=True, slots=True)
class DetectorRow:
    """What a detector said last about an attempt."""

    cause: str
    answer: str
    have: tuple[str, ...]
    lack: tuple[str, ...]
    sentence: str
    watermark: int | None
    evaluated_at: datetime


def finding_by_id(finding_id: int) -> FindingRow:
    """Return a finding.

    Raises:
        NotFound: there is none.
    """
    rows = _rows(Finding.objects.filter(pk=finding_id))
    if not rows:
        raise NotFound("There is no such finding.")
    return rows[0]


def findings_by_id(finding_ids: Collection[int]) -> list[FindingRow]:
    """Return findings by their numbers, in the order of finding."""
    return _rows(Finding.objects.filter(pk__in=list(finding_ids)).order_by("found_at", "pk"))


def findings_of(
    *,
    run_id: int | None = None,
    attempt_id: int | None = None,
    incident_id: int | None = None,
    cluster_id: int | None = None,
    state: str | None = None,
    cause: str | None = None,
    class_name: str | None = None,
    node: str | None = None,
    before: int | None = None,
    limit: int = 200,
) -> list[FindingRow]:
    """Return findings, newest first, below row `before`."""
    wanted: dict[str, Any] = {
        "run_id": run_id,
        "attempt_id": attempt_id,
        "incident_id": incident_id,
        "run__cluster_id": cluster_id,
        "state": state,
        "cause": cause,
        "class_name": class_name,
        "pk__lt": before,
    }
    found = Finding.objects.filter(**{name: value for name, value in wanted.items() if value is not None})
    if node is not None:
        found = found.filter(Q(subject__node=node) | Q(subject__nodes__contains=node))
    return _rows(found.order_by("-pk")[:limit])


def finding_ids_of_incidents(incident_ids: Collection[int]) -> list[tuple[int, int]]:
    """Return (finding, its incident) for all findings of some incidents, newest first."""
    found = Finding.objects.filter(incident_id__in=list(incident_ids)).order_by("-pk")
    return [(finding_id, int(incident_id or 0)) for finding_id, incident_id in found.values_list("pk", "incident_id")]


def findings_unconsidered(*, limit: int) -> list[FindingRow]:
    """Return findings that remediation has not considered in their present version, oldest first."""
    return _rows(Finding.objects.filter(considered_version__lt=F("version")).order_by("pk")[:limit])


def findings_to_reconsider(
    *, now: datetime, looked_before: datetime, run_ids: Collection[int], without: Collection[int], limit: int
) -> list[FindingRow]:
    """Return findings that call for an action of which remediation may think otherwise by now, the longest unlooked at first.

    Of the newest attempts of runs that are not only observed: those nobody looked at since `looked_before`, since their
    run was set anew, or since their quiet ended, and all of the runs `run_ids`; but for those named in `without`.
    """
    due = (
        Q(considered_at=None)
        | Q(considered_at__lte=looked_before)
        | Q(run__updated_at__gt=F("considered_at") - SET_IN)
        | Q(muted_until_at__gt=F("considered_at"))
        | Q(run_id__in=list(run_ids))
    )
    found = Finding.objects.filter(CALLS_FOR_ACTION, due, run__status__attempt_id=F("attempt_id"))
    found = found.filter(Q(run__mode__in=(Mode.PROPOSE, Mode.ACT)) | ~Q(run__modes={}))
    found = found.filter(Q(muted_until_at=None) | Q(muted_until_at__lte=now), considered_version__gte=F("version"))
    return _rows(found.exclude(pk__in=list(without)).order_by(F("considered_at").asc(nulls_first=True), "pk")[:limit])


def run_failed(attempt: AttemptRow) -> bool:
    """Return whether the attempt ended, or may have ended, by a failure."""
    return attempt.reason in ("CRASHED", "HUNG", "NODE_FAILURE", "UNKNOWN", "")


def start_said(attempt: AttemptRow) -> dict[str, str]:
    """Return why an attempt that is over could not start: the `message` and who it is `said_by`, nothing if it could.

    What several ranks said comes first; the program as a whole is asked only where none of its ranks told of its end.
    """
    if attempt.first_step is not None or not run_failed(attempt):
        return {}
    facts = facts_of(attempt.id, kinds=START_KINDS)
    # A line that many ranks told is one fact with all of them.
    said = start_error((rank, fact.text) for fact in facts for rank in {fact.rank, *fact.payload.get("ranks", ())})
    if said:
        return {"message": said, "said_by": "several ranks"}
    if not attempt.start_error or any(fact.kind == "exit" for fact in facts):
        return {}
    return {"message": attempt.start_error, "said_by": "its program"}


def detectors_of(attempt_id: int) -> list[DetectorRow]:
    """Return what each detector said last about an attempt, by cause."""
    rows = DetectorState.objects.filter(attempt_id=attempt_id).exclude(cause__startswith="_").order_by("cause")
    return [
        DetectorRow(
            cause=row.cause,
            answer=row.answer,
            have=tuple(row.have),
            lack=tuple(row.lack),
            sentence=row.sentence,
            watermark=row.watermark,
            evaluated_at=row.evaluated_at,
        )
        for row in rows
    ]


def _rows(found: QuerySet[Finding]) -> list[FindingRow]:
    return [
        FindingRow(
            id=row.pk,
            run_id=row.run_id,
            run=row.run.slug,
            attempt_id=row.attempt_id,
            world_size=row.attempt.world_size,
            cause=row.cause,
            class_name=row.class_name,
            level=row.level,
            state=row.state,
            certainty=row.certainty,
            subject=row.subject,
            place_key=row.place_key,
            victims=tuple(row.victims),
            score=row.score,
            score_meaning=row.score_meaning,
            since_step=row.since_step,
            found_step=row.found_step,
            began_at=row.began_at,
            found_at=row.found_at,
            confirmed_at=row.confirmed_at,
            coverage_have=row.coverage_have,
            coverage_of=row.coverage_of,
            evidence=row.evidence,
            verdict=row.verdict,
            why=row.why,
            next=row.next,
            proposal_kind=row.proposal_kind,
            proposal_node=row.proposal_node,
            cells=row.cells,
            cost_s=row.cost_s,
            incident_id=row.incident_id,
            version=row.version,
            considered_version=row.considered_version,
            considered_at=row.considered_at,
            muted_until_at=row.muted_until_at,
            muted_for_good=row.muted_for_good,
            mute_reason=row.mute_reason,
            muted_by_name=row.muted_by_name,
            closed_at=row.closed_at,
            close_reason=row.close_reason,
        )
        for row in found.select_related("run", "attempt")
    ]
