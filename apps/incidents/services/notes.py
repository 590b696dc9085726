"""Notes: what people write, at the moment it is about; edits keep what was said before."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from apps.common.errors import BadRequest, Conflict, Forbidden, NotFound
from apps.incidents.models import Incident, Note, NoteVersion
from apps.journal.services import Log, recording

MOST_TEXT = 20_000
AHEAD = timedelta(minutes=2)
"""How far ahead of us a writer's clock may be."""


class NoteChanged(Conflict):
    """Somebody else edited the note meanwhile."""

    code = "note_changed"


def note_add(
    *,
    incident_id: int,
    text: str,
    happened_at: datetime | None,
    author_key: str,
    author_name: str,
    source: str,
    now: datetime,
) -> int:
    """Write a note, back-dated if `happened_at` is given; return its row.

    Raises:
        BadRequest: nothing written, too much, or a moment that lies ahead. NotFound: no such incident.
    """
    text, moment = _text(text), _moment(happened_at or now, now=now)
    with recording(now=now) as log:
        incident = _incident(incident_id)
        note = Note.objects.create(
            incident=incident,
            happened_at=moment,
            written_at=now,
            author_key=author_key,
            author_name=author_name,
            source=source,
            text=text,
        )
        _say(log, incident, note, "note.added", by=author_name, source=source)
        return note.pk


def notes_add(
    *,
    incident_id: int,
    notes: Sequence[tuple[datetime | None, str]],
    author_key: str,
    author_name: str,
    source: str,
    now: datetime,
) -> list[int]:
    """Write notes, each a moment (None: now) and its text, all of them or none; return their rows.

    Raises:
        BadRequest: one of them says nothing, too much, or of a moment that lies ahead. NotFound: no such incident.
    """
    with recording(now=now):
        return [
            note_add(
                incident_id=incident_id,
                text=text,
                happened_at=happened_at,
                author_key=author_key,
                author_name=author_name,
                source=source,
                now=now,
            )
            for happened_at, text in notes
        ]


def note_edit(
    *,
    note_id: int,
    version: int,
    text: str,
    happened_at: datetime | None,
    author_key: str,
    author_name: str,
    source: str,
    now: datetime,
) -> None:
    """Change one's own note; what it said before is kept.

    Raises:
        BadRequest, NotFound: as in note_add. Forbidden: it is somebody else's. NoteChanged: not at `version` any more.
    """
    text = _text(text)
    with recording(now=now) as log:
        # Locked: of two edits at once the second one sees the first one's version and is told so.
        note = Note.objects.select_for_update(no_key=True).filter(pk=note_id).first()
        if note is None:
            raise NotFound("There is no such note.")
        if note.author_key != author_key:
            raise Forbidden(f"This note is {note.author_name}'s; write one of your own.")
        if note.version != version:
            raise NoteChanged("This note was changed meanwhile; look at it again.", version=note.version)
        NoteVersion.objects.create(
            note=note,
            version=note.version,
            text=note.text,
            happened_at=note.happened_at,
            replaced_at=now,
            replaced_by_name=author_name,
        )
        note.text, note.version, note.edited_at = text, version + 1, now
        note.happened_at = _moment(happened_at or note.happened_at, now=now)
        note.save()
        _say(log, note.incident, note, "note.edited", by=author_name, source=source)


def note_pin(*, note_id: int, pinned: bool, by: str, source: str, now: datetime) -> None:
    """Keep a note at the top of the write-up, or no longer; repeats change nothing.

    Raises:
        NotFound: there is no such note.
    """
    with recording(now=now) as log:
        note = Note.objects.filter(pk=note_id).select_related("incident").first()
        if note is None:
            raise NotFound("There is no such note.")
        if Note.objects.filter(pk=note_id).exclude(pinned=pinned).update(pinned=pinned):
            _say(log, note.incident, note, "note.pinned" if pinned else "note.unpinned", by=by, source=source)


def _text(text: str) -> str:
    text = text.strip()
    if not text:
        raise BadRequest("text: a note needs words.")
    if len(text) > MOST_TEXT:
        raise BadRequest(f"text: at most {MOST_TEXT:,} characters.")
    return text


def _moment(happened_at: datetime, *, now: datetime) -> datetime:
    if happened_at > now + AHEAD:
        raise BadRequest("happened_at: lies ahead; a note tells what has happened.")
    return min(happened_at, now)


def _incident(incident_id: int) -> Incident:
    row = Incident.objects.filter(pk=incident_id).first()
    if row is None:
        raise NotFound("There is no such incident.")
    return row


def _say(log: Log, incident: Incident, note: Note, kind: str, *, by: str, source: str) -> None:
    log.add(
        incident.stream,
        kind=kind,
        text=note.text[:200],
        source=source,
        happened_at=note.happened_at,
        actor_name=by,
        payload={"incident": incident.pk, "note": note.pk, "version": note.version},
    )
