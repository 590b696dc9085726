"""What a sender has gathered since its last report, and how a report is closed from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from paceline.members import Identity, Member, beat_of
from paceline.packing import steps_packed, utc_text
from paceline.spool import Entry, Target
from paceline.wire import Batch

MAX_EVENTS = 500
"""Events of one report; what is more goes with the next."""


@dataclass
class Opening:
    """What opens the attempt: filled in as ranks say hello."""

    run: str
    world_size: int
    key: str | None = None
    external_id: str | None = None
    resumed_from_step: int | None = None
    creates: bool = False
    run_fields: dict[str, Any] = field(default_factory=dict)
    kind: str = "attempt"

    def hello(self, rank: int, words: dict[str, Any]) -> None:
        """Take what a rank's HELLO says; the first resumed step stands, the run is rank 0's to describe."""
        if self.resumed_from_step is None:
            self.resumed_from_step = words.get("resumed_from_step")
        if rank == 0:
            self.creates = True
            self.run_fields = words.get("run_fields") or {}
            self.key = self.key or words.get("key")

    @property
    def target(self) -> Target:
        return Target(
            kind=self.kind,
            name=self.run,
            key=self.key or "",
            world_size=self.world_size,
            resumed_from_step=self.resumed_from_step,
            external_id=self.external_id,
            creates=self.creates,
            run_fields=self.run_fields,
        )


@dataclass(frozen=True)
class _Held:
    rank: int
    process: str
    batch: Batch


class Gathering:
    """Batches not yet in a report, and the numbers by which a repeated batch is known."""

    def __init__(self, node: str, boot: str) -> None:
        self.node = node
        self.boot = boot
        self.size = 0
        self._held: list[_Held] = []
        self._taken: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._seq = 0

    def follow(self, acks: dict[str, int]) -> None:
        """Count these batches as kept: the sender before this one had them on disk."""
        for process, number in acks.items():
            self._taken[process] = max(self._taken.get(process, 0), number)
            self._kept[process] = max(self._kept.get(process, 0), number)

    def add(self, identity: Identity, batch: Batch) -> bool:
        """Take a batch; return True if it is on disk already and its rank may forget it."""
        process = identity.process
        if batch.number > self._taken.get(process, 0):
            self._taken[process] = batch.number
            self._held.append(_Held(identity.rank, process, batch))
            self.size += batch.size
        return batch.number <= self._kept.get(process, 0)

    def forget(self, process: str) -> None:
        """Leave out what a rank takes to another sender."""
        self._held = [held for held in self._held if held.process != process]
        self.size = sum(held.batch.size for held in self._held)

    def kept(self, acks: dict[str, int]) -> None:
        for process, number in acks.items():
            self._kept[process] = max(self._kept.get(process, 0), number)

    def close(
        self,
        opening: Opening,
        members: list[Member],
        *,
        last_beats: list[dict[str, Any]],
        events: list[dict[str, Any]],
        drops: dict[str, int],
        place: bool,
    ) -> list[Entry]:
        """Return the reports that hold all of this; ranks far apart need more than one."""
        held, self._held, self.size = self._held, [], 0
        by_rank: dict[int, list[Batch]] = {}
        acks: dict[str, int] = {}
        for one in held:
            by_rank.setdefault(one.rank, []).append(one.batch)
            acks[one.process] = max(acks.get(one.process, 0), one.batch.number)
        events = events + [_of_rank(event, one.rank) for one in held for event in one.batch.events]
        checkpoints = [_of_rank(fact, one.rank) for one in held for fact in one.batch.checkpoints]
        parts: list[dict[str, Any]] = [{"steps": steps} for steps in steps_packed(by_rank)] or [{}]
        now = monotonic()
        beats = last_beats + [beat for beat in (beat_of(member, now) for member in members) if beat]
        parts[0].update({"beats": beats} if beats else {})
        parts[0].update({"checkpoints": checkpoints} if checkpoints else {})
        parts[0].update({"events": events[:MAX_EVENTS]} if events else {})
        parts[0].update({"drops": drops} if drops else {})
        if place:
            parts[0]["placement"] = [placement_of(member.identity, self.node) for member in members]
        parts += [{"events": events[at : at + MAX_EVENTS]} for at in range(MAX_EVENTS, len(events), MAX_EVENTS)]
        # The batches are acknowledged with the last part: only then all of them is on disk.
        return [
            self._entry(opening.target, part, acks if index == len(parts) - 1 else {})
            for index, part in enumerate(parts)
            if part or acks
        ]

    def end(self, opening: Opening, reason: str) -> Entry:
        """Return the end of the attempt, to be delivered after its reports."""
        body = json.dumps({"reason": reason}).encode()
        return Entry(opening.target, self.boot, self._seq, "end", body)

    def _entry(self, target: Target, part: dict[str, Any], acks: dict[str, int]) -> Entry:
        self._seq += 1
        head = {"sender": self.node, "boot": self.boot, "seq": self._seq, "sent_at": utc_text(time())}
        body = json.dumps({**head, **part}, separators=(",", ":")).encode()
        return Entry(target, self.boot, self._seq, "reports", body, acks)


def placement_of(identity: Identity, node: str) -> dict[str, Any]:
    """Return where a rank sits, for the report."""
    place: dict[str, Any] = {
        "rank": identity.rank,
        "node": node,
        "local_rank": identity.local_rank,
        "gpu": identity.gpu,
    }
    return {**place, "coords": identity.coords} if identity.coords else place


def _of_rank(fact: dict[str, Any], rank: int) -> dict[str, Any]:
    return fact if "rank" in fact else {**fact, "rank": rank}
