"""Streams as live pages name them, and their rows as messages carry them."""

from dataclasses import dataclass
from typing import Any

from apps.common.clock import rfc3339
from apps.common.errors import BadRequest
from apps.console.words import whole_of
from apps.fleet.selectors import cluster_by_name, node_by_code
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_after
from apps.runs.selectors import run_by_code

BATCH = 200


@dataclass(slots=True)
class FeedStream:
    """A stream that a page follows, and the last number it has."""

    key: StreamKey
    seq: int


def streams_named(names: list[str]) -> dict[str, FeedStream]:
    """Return the streams that `run:SLUG@SEQ`, `node:CLUSTER:NAME@SEQ`, `cluster:NAME@SEQ` or `system@SEQ` name, by name.

    Raises:
        BadRequest: a name without a number, or of no kind.
        NotFound: there is no such run, node or cluster.
    """
    found: dict[str, FeedStream] = {}
    for text in names:
        name, _, number = text.rpartition("@")
        seq = whole_of(number)
        if "\0" in text:
            raise BadRequest("stream: holds a zero byte.")
        if not name or seq is None:
            raise BadRequest(f"stream: “{text[:80]}” has no @NUMBER at its end.")
        found[name] = FeedStream(key=stream_by_name(name), seq=seq)
    return found


def stream_by_name(name: str) -> StreamKey:
    """Return the stream that a name means.

    Raises:
        BadRequest: a name of no kind.
        NotFound: there is no such run, node or cluster.
    """
    kind, _, code = name.partition(":")
    if kind == "run":
        return StreamKey.run(run_by_code(code).id)
    if kind == "node":
        return StreamKey.node(node_by_code(code).id)
    if kind == "cluster":
        return StreamKey.cluster(cluster_by_name(code).id)
    if name == "system":
        return StreamKey.system()
    raise BadRequest(f"stream: “{name[:80]}” is none of run:, node:, cluster:, system.")


def rows_after(stream: StreamKey, *, after: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the next rows of a stream for a message, by number, and whether there are more."""
    events = events_after(stream, after=after, limit=BATCH + 1)
    rows = [
        {
            "seq": event.seq,
            "kind": event.kind,
            "text": event.text,
            "happened_at": rfc3339(event.happened_at),
            "recorded_at": rfc3339(event.recorded_at),
            "source": event.source,
            "actor_name": event.actor_name,
            "subject": event.subject,
        }
        for event in events[:BATCH]
    ]
    return rows, len(events) > BATCH
