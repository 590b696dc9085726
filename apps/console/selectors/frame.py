"""The top bar: counts, and whether Paceline sees its senders."""

from dataclasses import dataclass
from datetime import datetime

from apps.fleet.selectors import clusters_all
from apps.runs.selectors import runs_all

ACTIVE = frozenset({"RUNNING", "SLOW", "HUNG", "SILENT", "STARTING", "STOPPED", "RESTARTING", "QUEUED"})


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
        incidents=0,
        nodes=sum(cluster.nodes for cluster in clusters_all()),
        watch=Watch("none", "no senders yet", "no report has come in"),
    )
