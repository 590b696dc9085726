"""The top bar: counts, and whether Paceline sees its senders."""

from dataclasses import dataclass
from datetime import datetime

from apps.console.words import count, spell, utc
from apps.fleet.selectors import clusters_all
from apps.incidents.selectors import blind_since, incidents_open_count
from apps.runs.limits import limit_value
from apps.runs.selectors import RunRow, runs_all
from apps.telemetry.selectors import door_state, senders_of

ACTIVE = frozenset({"RUNNING", "SLOW", "HUNG", "SILENT", "STARTING", "STOPPED", "RESTARTING", "QUEUED"})


BLIND_S = 30.0
"""All senders silent for this long is told across the page; before that the top bar's word is enough."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How well Paceline sees: a token, the words in the top bar, what to say under the pointer."""

    token: str
    words: str
    title: str
    blind: bool = False
    since_at: datetime | None = None


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
    """Return how well Paceline sees: how many senders of open attempts were heard of late, and how far behind it is."""
    door = door_state()
    blind_at = blind_since()
    if blind_at is not None:
        return Watch(
            "crit",
            "Blind: takes no reports",
            f"The report door has not answered since {utc(blind_at)}.",
            True,
            blind_at,
        )
    heard, silent, newest = 0, [], None
    for run in active:
        if run.attempt_id is None or run.attempt_state != "OPEN":
            continue
        limit_s = limit_value(run.limits, "no_telemetry_s")
        for sender in senders_of(run.attempt_id):
            newest = max(filter(None, (newest, sender.last_received_at)), default=None)
            if (now - sender.last_received_at).total_seconds() <= limit_s:
                heard += 1
            else:
                silent.append(f"{sender.sender} of {run.slug}")
    everyone = heard + len(silent)
    if not everyone:
        return Watch("none", "no senders", "no attempt that is open has reported yet")
    if not heard:
        since = f"newest report {utc(newest)}" if newest else "none has ever reported"
        age_s = (now - newest).total_seconds() if newest else 0.0
        age = spell(age_s) if newest else "ever"
        return Watch(
            "crit",
            f"No reports for {age}",
            f"No report from any of {count(everyone, 'sender')}; {since}.",
            age_s >= BLIND_S,
            newest,
        )
    behind_s = (now - door.oldest_received_at).total_seconds() if door.oldest_received_at else 0.0
    title = (
        f"silent: {', '.join(silent[:6])}{', …' if len(silent) > 6 else ''}"
        if silent
        else "every sender of an open attempt reports"
    )
    words = f"{heard:,} of {everyone:,} senders, {max(0.0, behind_s):.1f} s behind"
    return Watch("none" if silent else "ok", words, title)
