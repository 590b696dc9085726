"""The words of the log, and what names a stream."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import TextChoices


class StreamKind(TextChoices):
    """What a stream belongs to."""

    RUN = "RUN"
    NODE = "NODE"
    CLUSTER = "CLUSTER"
    SYSTEM = "SYSTEM"


class Source(TextChoices):
    """Which door or part an event came through."""

    WEB = "WEB", "web"
    API = "API", "API"
    COMMAND = "COMMAND", "command"
    SENDER = "SENDER", "sender"
    DETECTOR = "DETECTOR", "detector"
    LAUNCHER = "LAUNCHER", "launcher"
    RULE = "RULE", "rule"
    SYSTEM = "SYSTEM", "Paceline"


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Names one stream."""

    kind: str
    id: int

    @classmethod
    def run(cls, run_id: int) -> StreamKey:
        return cls(StreamKind.RUN, run_id)

    @classmethod
    def node(cls, node_id: int) -> StreamKey:
        return cls(StreamKind.NODE, node_id)

    @classmethod
    def cluster(cls, cluster_id: int) -> StreamKey:
        return cls(StreamKind.CLUSTER, cluster_id)

    @classmethod
    def system(cls) -> StreamKey:
        return cls(StreamKind.SYSTEM, 0)
