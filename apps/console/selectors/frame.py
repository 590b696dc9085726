"""The top bar: counts, and whether Paceline sees its senders."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from apps.console.words import count, spell, utc
from apps.fleet.selectors import clusters_all
from apps.incidents.selectors import blind_since, incidents_open_count
from apps.runs.limits import limit_value
from apps.runs.selectors import RunRow, attempts_by_id, runs_all
from apps.telemetry.selectors import door_state, senders_expected, senders_heard

ACTIVE = frozenset({"RUNNING", "SLOW", "HUNG", "SILENT", "STARTING", "STOPPED", "GAVE_UP", "RESTARTING", "QUEUED"})
"""A run in one of these states stands among those that go on or need somebody; only a finished one has ended."""

MOST_ASKED = 8
"""Runs with silent senders of which is asked who has left them. Where more are silent at once it is not for having left."""

BLIND_S = 30.0
"""All senders silent for this long is told across the page; before that the top bar's word is enough."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How well Paceline sees: a token, the words in the top bar, what to say under the pointer."""

    token: str
    words: str
    title: str
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """Counts beside the names of the pages, and the watch state."""

    runs: int
    incidents: int
    nodes: int
    watch: Watch


def frame_read(*, now: datetime) -> Frame:
    """Return the frame of a page."""
    active = [run for run in runs_all() if run.state in ACTIVE]
    return Frame(
        runs=len(active),
        incidents=incidents_open_count(),
        nodes=sum(cluster.nodes for cluster in clusters_all()),
        watch=watch_read(active, now=now),
    )


def watch_read(active: list[RunRow], *, now: datetime) -> Watch:
    """Return how well Paceline sees: how many of those that should speak now were heard of late, how far behind it is."""
    blind_at = blind_since()
    if blind_at is not None:
        title = f"The report door has not answered since {utc(blind_at)}; senders keep what they have."
        return Watch("crit", "Blind: takes no reports", title, blind=True)
    heard, silent, newest = _senders(active, now=now)
    everyone = heard + len(silent)
    if newest is None:
        return Watch("none", "no senders", "nobody has to report now: no attempt is open with ranks that were heard of")
    if not heard:
        age_s = (now - newest).total_seconds()
        title = f"No report from any of {count(everyone, 'sender')} since {utc(newest)}. Ingest and database answer."
        return Watch("crit", f"No reports for {spell(age_s)}", title, blind=age_s >= BLIND_S)
    waiting_since = door_state().oldest_received_at
    behind_s = max(0.0, (now - waiting_since).total_seconds()) if waiting_since else 0.0
    title = (
        f"silent: {', '.join(silent[:6])}{', …' if len(silent) > 6 else ''}"
        if silent
        else "every sender of an open attempt reports"
    )
    return Watch("none" if silent else "ok", f"{heard:,} of {everyone:,} senders, {behind_s:.1f} s behind", title)


def _senders(active: list[RunRow], *, now: datetime) -> tuple[int, list[str], datetime | None]:
    """Return how many senders that should speak are heard, the names of the silent ones, the newest report's time."""
    heard, silent, newest, asked = 0, [], None, 0
    is_open = {run.attempt_id: run for run in active if run.attempt_id is not None and run.attempt_state == "OPEN"}
    known = senders_heard(list(is_open))
    for attempt in attempts_by_id(is_open).values():
        run, senders = is_open[attempt.id], known[attempt.id]
        within = timedelta(seconds=limit_value(run.limits, "no_telemetry_s"))
        if asked < MOST_ASKED and any(now - sender.last_received_at > within for sender in senders):
            senders = senders_expected(attempt, within=within, now=now, known=senders)
            asked += 1
        for sender in senders:
            newest = max(newest or sender.last_received_at, sender.last_received_at)
            if now - sender.last_received_at <= within:
                heard += 1
            else:
                silent.append(f"{sender.sender} of {run.slug}")
    return heard, silent, newest
