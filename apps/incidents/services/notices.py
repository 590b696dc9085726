"""Notices: written with what they tell, sent later, at least once, one per fault and step of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import connection

from apps.accounts.choices import Role
from apps.accounts.selectors import people_all
from apps.common.clock import rfc3339
from apps.common.errors import BadRequest
from apps.common.ids import id_write
from apps.common.signing import signed_post
from apps.common.tasks import queue_on_commit
from apps.diagnosis.choices import CloseReason
from apps.diagnosis.selectors import FindingRow, findings_of
from apps.incidents.choices import LEVEL_RANK, Channel, IncidentState, NoticeKind, NoticeState, wave_of
from apps.incidents.losses import lead_of, lost_gpu_hours
from apps.incidents.models import Incident, Notice, NoticeTarget
from apps.journal.choices import Source, StreamKey
from apps.journal.services import recording
from apps.runs.selectors import run_by_id

HOLD = timedelta(seconds=60)
"""How long a suspicion may wait for its confirmation before people are told: one fault is one message."""

TIMEOUT_S = 10.0
LEAST_HOURS = 0.01
"""GPU-hours below this are said as "under"."""
MOST_TRIES = 12
SENDERS_LOCK = (0x49 << 56) | 1
"""Key of the session lock of whoever sends; the first byte is this room's."""

BACKOFF_S = (1, 2, 5, 15, 30, 60, 120, 300, 600, 900, 1800)
"""Waits between tries: about an hour and a half in all, longer than a mail server's restart."""


def notices_consider(incident: Incident, *, now: datetime) -> None:
    """Write the notices that an incident's present state asks for; each kind and level once, and each cause that joins it."""
    if incident.state in (IncidentState.RESOLVED, IncidentState.FALSE_ALARM):
        if incident.notified_level:
            _write(incident, NoticeKind.CLOSED, str(incident.state), now=now)
        return
    if not incident.notified_level:
        sure = incident.certainty == "CONFIRMED" or now - incident.found_at >= HOLD
        if sure and not _all_muted(incident, now) and not _all_recovered(incident):
            _mark(incident, NoticeKind.OPENED, now=now)
    elif LEVEL_RANK[incident.level] > LEVEL_RANK[incident.notified_level]:
        _mark(incident, NoticeKind.ESCALATED, now=now)
    else:
        _again(incident, now=now)
        _joined(incident, now=now)


def _again(incident: Incident, *, now: datetime) -> None:
    """Tell once that what was said to be dealt with came back in a later attempt, as soon as that is sure, or lasts."""
    attempt_id = incident.again_attempt_id
    if attempt_id is None:
        return
    back = findings_of(incident_id=incident.pk, attempt_id=attempt_id, state="OPEN", limit=100)
    if any((row.certainty == "CONFIRMED" or now - row.found_at >= HOLD) and not row.muted(now) for row in back):
        Incident.objects.filter(pk=incident.pk).update(again_attempt_id=None)
        _write(incident, NoticeKind.AGAIN, str(attempt_id), now=now)


def notice_joined(incident: Incident, *, now: datetime) -> None:
    """Tell those who know of an incident that more of its own kind joined it: each time is news."""
    if incident.notified_level:
        _write(incident, NoticeKind.JOINED, now.isoformat(), now=now)


def _joined(incident: Incident, *, now: datetime) -> None:
    """Tell of each cause once that joined an incident people know of: they may be dealing with another one.

    What the incident's own cause brings about is no news, nor is a more exact word for what was told of the same node.
    """
    if incident.count < 2:
        return
    said = Notice.objects.filter(incident=incident).values_list("payload__cause", "payload__subject__node")
    nodes = {(cause, node) for cause, node in said if node}
    told = {cause for cause, _ in said}
    if not told:
        return  # there was nobody to tell of the incident itself
    for row in findings_of(incident_id=incident.pk, state="OPEN", limit=100):
        is_news = row.cause not in told | wave_of(incident.cause) and row.level != "INFO" and not row.muted(now)
        # A node that is not heard, say, is lost.
        is_exact = any(cause in wave_of(row.cause) and node == row.subject.get("node") for cause, node in nodes)
        # What makes the incident itself graver is told as that, once it is absorbed.
        escalates = row.place_key == incident.place_key and LEVEL_RANK[row.level] > LEVEL_RANK[incident.level]
        if is_news and not is_exact and not escalates and (row.certainty == "CONFIRMED" or now - row.found_at >= HOLD):
            told.add(row.cause)
            payload = incident_content(incident, NoticeKind.JOINED, now=now, told=row)
            dedupe = f"inc:{incident.pk}:{NoticeKind.JOINED}:{row.cause}"
            _write_all(payload, kind=NoticeKind.JOINED, dedupe=dedupe, incident=incident, now=now)


def _all_muted(incident: Incident, now: datetime) -> bool:
    rows = findings_of(incident_id=incident.pk, state="OPEN", limit=100)
    return bool(rows) and all(row.muted(now) for row in rows)


def _all_recovered(incident: Incident) -> bool:
    """Return whether it is over by itself: what went before anybody was told of it wakes nobody."""
    rows = findings_of(incident_id=incident.pk, limit=100)
    return bool(rows) and all(row.close_reason == CloseReason.RECOVERED for row in rows)


def _mark(incident: Incident, kind: str, *, now: datetime) -> None:
    Incident.objects.filter(pk=incident.pk).update(notified_level=incident.level)
    _write(incident, kind, incident.level, now=now)


def _write(incident: Incident, kind: str, step: str, *, now: datetime) -> None:
    payload = incident_content(incident, kind, now=now)
    _write_all(payload, kind=kind, dedupe=f"inc:{incident.pk}:{kind}:{step}", incident=incident, now=now)


def watch_notice(*, kind: str, since_at: datetime, now: datetime) -> None:
    """Write the notices that say that Paceline itself is blind, or sees again."""
    words = "Paceline sees nothing" if kind == NoticeKind.BLIND else "Paceline sees again"
    text = f"{words}: its door has taken no report since {rfc3339(since_at)}. Runs may be well; we can't tell."
    if kind == NoticeKind.SEES:
        text = f"{words}. It was blind since {rfc3339(since_at)}; clocks start anew."
    payload = {"kind": kind, "title": words, "text": text, "url": f"{settings.PUBLIC_URL}/", "at": rfc3339(now)}
    _write_all(payload, kind=kind, dedupe=f"watch:{kind}:{rfc3339(since_at)}", incident=None, now=now)


def watch_was_told(*, since_at: datetime) -> bool:
    """Return whether people were told that Paceline is blind since that moment."""
    return Notice.objects.filter(dedupe_key__startswith=f"watch:{NoticeKind.BLIND}:{rfc3339(since_at)}:").exists()


def _write_all(payload: dict[str, Any], *, kind: str, dedupe: str, incident: Incident | None, now: datetime) -> None:
    common = {"incident": incident, "kind": kind, "payload": payload, "next_try_at": now, "created_at": now}
    rows = [Notice(channel=Channel.EMAIL, dedupe_key=f"{dedupe}:email", **common)] if mail_recipients() else []
    rows += [
        Notice(channel=Channel.WEBHOOK, target=target, dedupe_key=f"{dedupe}:hook:{target.pk}", **common)
        for target in NoticeTarget.objects.filter(enabled=True).order_by("pk")
    ]
    queue_on_commit("incidents.notices_sweep")
    Notice.objects.bulk_create(rows, ignore_conflicts=True)  # the same step of the same fault is told once


def incident_content(incident: Incident, kind: str, *, now: datetime, told: FindingRow | None = None) -> dict[str, Any]:
    """Return what a notice says: link, verdict, why, next and price; of the finding that is `told`, else of the one that leads."""
    run = run_by_id(incident.run_id) if incident.run_id else None
    lead = told or lead_of(incident)
    over = kind == NoticeKind.CLOSED
    verdict = lead.verdict if lead else incident.title
    lost = lost_gpu_hours(incident, run, lead_of(incident), now=now)
    return {
        "kind": kind,
        "incident": id_write("inc", incident.pk),
        "number": incident.number,
        "title": told.verdict if told else incident.title,
        "state": incident.state,
        "level": told.level if told else incident.level,
        "certainty": told.certainty if told else incident.certainty,
        "class": told.class_name if told else incident.class_name,
        "cause": told.cause if told else incident.cause,
        "subject": told.subject if told else incident.subject,
        "run": run.slug if run else None,
        "verdict": _over(incident, verdict) if over else verdict,
        "why": lead.why if lead and not over else "",
        "next": lead.next if lead and not over else "",
        "price": {
            "at_risk_steps": run.at_risk_steps if run else None,
            "at_risk_gpu_hours": run.at_risk_gpu_hours if run else None,
            "lost_gpu_hours": lost,
        },
        "began_at": rfc3339(incident.began_at),
        "found_at": rfc3339(incident.found_at),
        "url": f"{settings.PUBLIC_URL}/incidents/{incident.number}",
        "at": rfc3339(now),
    }


def _over(incident: Incident, verdict: str) -> str:
    """Return what a closing notice says: that it is over and how, and what it was in the past tense's place."""
    by = f" by {incident.resolved_by_name}" if incident.resolved_by_name else ""
    if incident.state == IncidentState.FALSE_ALARM:
        return f"It was a false alarm, closed{by}. It had been said: {verdict}"
    how = f": {incident.resolution.rstrip('.')}" if incident.resolution else ""
    return f"It is over, closed{by}{how}. It had begun as: {verdict}"


def mail_folder() -> str:
    """Return the folder that mail is written to because no mail server is named, empty where one is."""
    return "" if settings.EMAIL_HOST else str(settings.EMAIL_FILE_PATH)


def mail_recipients() -> list[str]:
    """Return the addresses of everyone who may act and has one, in alphabetical order."""
    return sorted({p.email for p in people_all() if p.is_active and p.email and p.role in (Role.OPERATOR, Role.ADMIN)})


def notices_send(*, now: datetime, limit: int = 50) -> int:
    """Send what is due; return how many arrived. No transaction is open while a message travels.

    One sender at a time, and a place that does not take a message is left alone for the rest of the round: whoever is
    slow to answer costs a worker one time-out, and holds up nobody else's messages.
    """
    with _alone() as is_alone:
        if not is_alone:
            return 0
        due = (
            Notice.objects.filter(state=NoticeState.PENDING, next_try_at__lte=now)
            .exclude(target__enabled=False)
            .order_by("next_try_at", "pk")
        )
        sent, away = 0, set[int | None]()
        for row in due.select_related("target")[:limit]:
            if row.target_id in away:
                continue
            wait_s = BACKOFF_S[min(row.tries, len(BACKOFF_S) - 1)]
            # Pushed ahead before it travels, so that a sender that dies in the middle makes it come again: at least once.
            Notice.objects.filter(pk=row.pk).update(
                tries=row.tries + 1, next_try_at=now + timedelta(seconds=wait_s + TIMEOUT_S)
            )
            if _try(row, now=now, wait_s=wait_s):
                sent += 1
            else:
                away.add(row.target_id)
        return sent


@contextmanager
def _alone() -> Iterator[bool]:
    """Give whether this process may send now. A lock of the session, so that it ends with whoever dies holding it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", (SENDERS_LOCK,))
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", (SENDERS_LOCK,))


def _try(row: Notice, *, now: datetime, wait_s: int) -> bool:
    try:
        _deliver(row, now=now)
    except (OSError, ValueError) as error:
        over = row.tries + 1 >= MOST_TRIES
        state = NoticeState.FAILED if over else NoticeState.PENDING
        Notice.objects.filter(pk=row.pk).update(
            state=state, error=str(error)[:500], next_try_at=now + timedelta(seconds=wait_s)
        )
        if over:
            _say(row, "notice.failed", f"Notice given up after {MOST_TRIES} tries: {str(error)[:200]}", now=now)
        return False
    Notice.objects.filter(pk=row.pk).update(state=NoticeState.SENT, sent_at=now, error="")
    _say(row, "notice.sent", _told(row), now=now)
    return True


def _deliver(row: Notice, *, now: datetime) -> None:
    if row.channel == Channel.WEBHOOK:
        if row.target is None:
            raise ValueError("its target is gone")
        content = {"notice": row.pk, **row.payload}
        answer = signed_post(row.target.url, content, secret=row.target.secret, at=now, timeout_s=TIMEOUT_S)
        if not 200 <= answer.status < 300:
            raise OSError(f"{row.target.name} answered {answer.status}")
        return
    recipients = mail_recipients()
    if not recipients:
        raise ValueError("nobody who may act has an address any more")
    EmailMessage(
        subject=_subject(row.payload),
        body=_body(row.payload),
        to=recipients,
        headers={"X-Paceline-Notice": str(row.pk)},
    ).send()


def _subject(payload: dict[str, Any]) -> str:
    number = f"INC-{payload['number']} " if payload.get("number") else ""
    line = f"[Paceline] {number}{NoticeKind(payload['kind']).label}: {payload['title']}"
    return " ".join(line.split())[:200]


def _body(payload: dict[str, Any]) -> str:
    if "number" not in payload:
        return f"{payload['text']}\n\n{payload['url']}\n"
    price = payload["price"]
    over = payload["kind"] == NoticeKind.CLOSED
    lines = [payload["verdict"], ""]
    lines += [f"{name}: {payload[key]}" for name, key in (("Why", "why"), ("Next", "next")) if payload[key]]
    if price["at_risk_gpu_hours"] is not None and not over:
        lines.append(f"At risk: {price['at_risk_steps']:,} steps, {_hours(price['at_risk_gpu_hours'])} GPU-hours.")
    if price["lost_gpu_hours"] is not None:
        lines.append(f"{'Lost' if over else 'Lost so far'}: {_hours(price['lost_gpu_hours'])} GPU-hours.")
    return "\n".join([*lines, "", payload["url"], ""])


def _hours(value: float) -> str:
    """Return GPU-hours with the digits that still say something: a small loss is no 0.0."""
    if 0 < value < LEAST_HOURS:
        return f"under {LEAST_HOURS}"
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def _told(row: Notice) -> str:
    over = "that it is over: " if row.kind == NoticeKind.CLOSED else ""
    folder = mail_folder() if row.channel == Channel.EMAIL else ""
    if folder:
        return f"Written to {folder} (no mail server is named): {over}{row.payload['title']}"
    return f"Told by {Channel(row.channel).label}{' ' if over else ': '}{over}{row.payload['title']}"


def _say(row: Notice, kind: str, text: str, *, now: datetime) -> None:
    incident = row.incident
    stream = incident.stream if incident is not None else StreamKey.system()
    with recording(now=now) as journal:
        payload = {"notice": row.pk, "incident": incident.pk if incident else None, "channel": row.channel}
        journal.add(stream, kind=kind, text=text, source=Source.SYSTEM, payload=payload)


def notice_target_put(*, name: str, url: str, secret: str, by: str, source: str, now: datetime) -> int:
    """Add a webhook that is told; return its row.

    Raises:
        BadRequest: no name, no http address, or a secret of under 16 characters.
    """
    if not name.strip():
        raise BadRequest("name: say what this webhook is.")
    if not url.startswith(("http://", "https://")) or len(url) > 500:
        raise BadRequest("url: must be an http or https address.")
    if len(secret) < 16:
        raise BadRequest("secret: must have 16 characters or more; the receiver checks the signature with it.")
    with recording(now=now) as journal:
        row = NoticeTarget.objects.create(name=name.strip()[:100], url=url, secret=secret, created_at=now)
        text = f"Notices go to “{row.name}”"
        journal.add(
            StreamKey.system(),
            kind="notice.target",
            text=text,
            source=source,
            actor_name=by,
            payload={"target": row.pk},
        )
    return row.pk


def notice_target_enable(*, target_id: int, enabled: bool, by: str, source: str, now: datetime) -> None:
    """Switch a webhook on or off; a second call changes nothing. What was not sent to it yet is sent once it is on."""
    with recording(now=now) as journal:
        changed = NoticeTarget.objects.filter(pk=target_id).exclude(enabled=enabled).update(enabled=enabled)
        if changed:
            text = f"Notices to webhook {target_id} are {'on' if enabled else 'off'}"
            journal.add(
                StreamKey.system(),
                kind="notice.target",
                text=text,
                source=source,
                actor_name=by,
                payload={"target": target_id},
            )
