"""The node's sender: a thread in one of its ranks, elected; gathers what the ranks measured and has it delivered."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any, NoReturn

from paceline.courier import Courier
from paceline.crew import Crew, is_another
from paceline.digest import fresh_name
from paceline.drops import Drops, lost_sentence
from paceline.gathering import Gathering, Opening
from paceline.links import Links
from paceline.members import Identity, Member, Roster, Watch, last_beat
from paceline.say import say_once
from paceline.settings import Settings, spool_folder
from paceline.spool import Spool
from paceline.transport import Server
from paceline.wire import (
    ACK,
    BATCH,
    BEAT,
    HELLO,
    LEAVE,
    PING,
    REFUSED,
    ROSTER,
    WELCOME,
    Batch,
    Link,
    LinkClosed,
    ack_encode,
    batch_decode,
    json_decode,
    json_encode,
    peer_pid,
)

PING_EVERY_S = 0.5
URGENT_AFTER_S = 0.02
"""An exit waits this long for others of the same moment; a launcher that kills the rest leaves little time."""
AWAY_INTERVAL_S = 20.0
"""Reports closed while the server is away hold more each, so that the spool lasts."""
OTHERS_S = 1.0
"""Ranks that end together are given this long to say so, before the attempt is ended or its sender leaves."""
OTHER_NODES_S = 0.4
"""The ranks of other nodes end at the same moment; their last reports should not be late ones of an attempt that is over."""
MAX_GATHERED_BYTES = 96 * 1024
"""A report is closed before it grows past this; with base64 and gzip it stays far below the client's 10 MiB."""


class Hub:
    """A sender, as long as it is the one of its node."""

    def __init__(
        self,
        settings: Settings,
        *,
        identity: Identity,
        generation: int,
        folder: str,
        listener: socket.socket | None,
        predecessor: Roster | None,
        superseded: Callable[[], bool],
        find_key: Callable[[], str | None],
    ) -> None:
        self.boot = fresh_name(32)
        self.generation = generation
        self.drops = Drops()
        self._settings = settings
        self._identity = identity
        self._predecessor = predecessor
        self._superseded = superseded
        self._find_key = find_key
        self._spool = Spool(spool_folder(settings.spool_dir, settings.url), max_bytes=settings.spool_max_bytes)
        self.courier = Courier(
            Server(settings.url, settings.token),
            self._spool,
            boot=self.boot,
            drops=self.drops,
            interval_s=settings.interval_s,
        )
        self.courier.on_kept = self._kept
        known = predecessor.key if predecessor else None
        key = known or (None if settings.torchrun else settings.base_key)
        kind = "check" if settings.check else "attempt"
        self._opening = Opening(settings.run, settings.world_size, key, settings.external_id, kind=kind)
        self._gathering = Gathering(settings.node, self.boot)
        self._watch = Watch(settings.node, folder)
        self._links = Links(listener)
        self._crew = Crew(identity.process, wake=self._links.waker.wake)
        self._acks: deque[dict[str, int]] = deque()
        self._closed_at = monotonic() - settings.interval_s / 2
        self._hurry_until = float("inf")
        self._ping_at = 0.0
        self._place = True
        self._last_beats: list[dict[str, Any]] = []
        self._rank_losses: dict[str, dict[str, int]] = {}
        self._lost_told: dict[str, int] = {}
        self._end: str | None = None
        self._end_from = self._end_by = 0.0
        self._stop_within_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-sender", daemon=True)

    # -- from other threads ----------------------------------------------------------------------------------------
    def start(self) -> None:
        self._take_over()
        self.courier.start()
        self._thread.start()

    def attach(self, sock: socket.socket) -> None:
        """Take a connection that doesn't come through the listener; before `start` only."""
        self._links.attach(sock)

    def stop(self, timeout_s: float) -> None:
        """Close the last report, deliver what can be delivered within `timeout_s`, tell the ranks, go."""
        self._stop_within_s = timeout_s
        self._links.waker.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s + 1.0)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close_in_child(self) -> None:
        """Close what a forked child inherited, so that this process's death is seen although the child lives."""
        self._links.close()
        self.courier.close_in_child()

    def _kept(self, acks: dict[str, int]) -> None:
        self._acks.append(acks)
        self._links.waker.wake()

    def _take_over(self) -> None:
        """Follow the sender before this one: its reports are ours to deliver, its ranks ours to look after."""
        before = self._predecessor
        if before is None:
            return
        for name in self._spool.names(before.boot):
            entry = self._spool.read(name)
            self._gathering.follow(entry.acks if entry else {})
        self.courier.adopt(before.boot)
        if not before.leaving:
            for identity in (before.sender, *before.ranks):
                if identity.process != self._identity.process:
                    self._watch.went(identity)

    # -- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while self._stop_within_s is None and not self._superseded():
                self._turn()
            self._leave()
        except Exception as error:  # a fault of ours: the ranks elect another sender
            say_once("sender", f"the sender of this node failed: {error!r}")
            self.courier.stop(0.0)
        finally:
            self._links.close()

    def _turn(self) -> None:
        self._links.hear(self._wait_s(), frame=self._frame, lost=self._lose)
        self._watch.look()
        self._acknowledge()
        self._place = self._crew.name_gpus() or self._place
        now = monotonic()
        if now >= self._ping_at:
            self._ping_at = now + PING_EVERY_S
            self._watch.silences(self._crew.all())
            self._tell_all(PING, b"")
        if self._watch.urgent:
            self._watch.urgent = False
            self._hurry_until = min(self._hurry_until, now + URGENT_AFTER_S)
        if self._opening.key is None:
            self._ask_key()
        elif now >= self._due_at() or self._gathering.size > MAX_GATHERED_BYTES:
            self._close_report(now)

    def _wait_s(self) -> float:
        if self._watch.in_a_hurry:
            return URGENT_AFTER_S
        until = self._ping_at if self._opening.key is None else min(self._ping_at, self._due_at())
        return max(until - monotonic(), 0.0)

    def _due_at(self) -> float:
        """Return when the next report is closed: after an interval, a longer one while nobody takes reports, or now."""
        interval_s = self._settings.interval_s
        usual = self._closed_at + (max(AWAY_INTERVAL_S, interval_s) if self.courier.away else interval_s)
        return min(usual, self._hurry_until, self._end_at() if self._end is not None else usual)

    def _end_at(self) -> float:
        """Return when the attempt may be ended: the node's other ranks have left, those of other nodes had a moment."""
        return self._end_from if self._crew.others_have_left() else self._end_by

    def _close_report(self, now: float, *, last: bool = False) -> None:
        self._closed_at, self._hurry_until = now, float("inf")
        lost = self._lost()
        if lost != self._lost_told:
            self._lost_told = lost
            self._watch.note(None, lost_sentence(lost))
        members = self._crew.all()
        last_beats, self._last_beats = self._last_beats, []
        for entry in self._gathering.close(
            self._opening,
            members,
            last_beats=last_beats,
            events=self._watch.take(),
            drops=lost,
            place=self._place and bool(members),
        ):
            self.courier.post(entry)
        self._place = self._place and not members
        if self._end is not None and (last or now >= self._end_at()):
            self.courier.post(self._gathering.end(self._opening, self._end))
            self._end = None

    def _lost(self) -> dict[str, int]:
        """Return what was lost so far, by reason: here, and in the ranks that were heard."""
        lost = self.drops.counts()
        for found in self._rank_losses.values():
            for reason, n in found.items():
                lost[reason] = lost.get(reason, 0) + n
        return lost

    def _ask_key(self) -> None:
        found = self._find_key()
        if found:
            self._opening.key = found
            self._tell_all(ROSTER, self._roster())

    def _acknowledge(self) -> None:
        while self._acks:
            acks = self._acks.popleft()
            self._gathering.kept(acks)
            for process, number in acks.items():
                member = self._crew.of_process(process)
                if member is not None:
                    self._tell(member.link, ACK, ack_encode(number))

    def _leave(self) -> None:
        """Stop being the sender; what was gathered is told if we go by ourselves, else left to whoever took over."""
        within_s = self._stop_within_s
        if within_s is None:
            self.courier.stop(0.0)
            return
        own = self._identity.process
        deadline = monotonic() + within_s
        until = monotonic() + min(OTHERS_S, within_s / 2)
        # Ranks that end together leave through one sender, and the attempt's end is told after their last words.
        while monotonic() < until and not (self._crew.all_have_left() and self._end is None):
            self._turn()
        if self._crew.others_have_left():
            self._watch.gone_alone(own)
        self._watch.clean_settle()
        leaving = own not in self._watch.missing  # else whoever follows looks how this process ends
        if self._opening.key is not None:
            self._close_report(monotonic(), last=True)
        self.courier.stop(max(deadline - monotonic(), 0.2))
        self._acknowledge()
        self._tell_all(ROSTER, self._roster(leaving=leaving))

    # -- what ranks say --------------------------------------------------------------------------------------------
    def _frame(self, link: Link, kind: int, payload: bytes) -> None:
        if kind == HELLO:
            self._hello(link, json_decode(payload))
            return
        member = self._crew.of_link(link)
        if member is None:
            raise LinkClosed("no hello")
        member.heard_at = monotonic()
        if kind == BATCH:
            self._batch(member, batch_decode(payload))
        elif kind == BEAT:
            member.beat, member.beat_at = json_decode(payload), member.heard_at
            if member.beat.get("lost"):
                self._rank_losses[member.identity.process] = member.beat["lost"]
        elif kind == LEAVE:
            self._goodbye(member, json_decode(payload))

    def _hello(self, link: Link, words: dict[str, Any]) -> None:
        try:
            identity = Identity(**{**words["identity"], "pid": peer_pid(link.sock)})
        except (KeyError, TypeError) as error:
            raise LinkClosed("not a hello") from error
        known = self._crew.of_rank(identity.rank)
        if known is not None and is_another(known, identity):
            self._refuse(link, known, identity)
        if known is not None:
            self._lose(known.link)
        self._crew.join(identity, link)
        self._opening.hello(identity.rank, words)
        self._watch.came(identity)
        self._place = True
        self._tell(link, WELCOME, self._roster())
        self._tell_all(ROSTER, self._roster())

    def _refuse(self, link: Link, known: Member, identity: Identity) -> NoReturn:
        """Send a process away that says to be a rank which another one is."""
        first, second = known.identity.pid, identity.pid
        text = f"processes {first} and {second} both say to be rank {identity.rank}; only the first is reported"
        self._watch.note(identity.rank, text)
        self._tell(link, REFUSED, json_encode({"text": text}))
        raise LinkClosed(text)

    def _batch(self, member: Member, batch: Batch) -> None:
        if self._gathering.add(member.identity, batch):
            self._tell(member.link, ACK, ack_encode(batch.number))
        elif any(event.get("kind") == "exit" for event in batch.events):
            self._watch.urgent = True

    def _goodbye(self, member: Member, words: dict[str, Any]) -> None:
        if words.get("moving"):
            self._gathering.forget(member.identity.process)
        self._watch.left(member.identity, words)
        self._watch.urgent = True
        if words.get("finished"):
            self._last_beats.append(last_beat(member))
        if words.get("end"):
            now, alone = monotonic(), len(self._crew.all()) >= self._settings.world_size
            self._end, self._end_by = words["end"], now + OTHERS_S
            self._end_from = now if alone else now + OTHER_NODES_S
        member.left, member.beat = True, None

    def _lose(self, link: Link) -> None:
        member = self._crew.of_link(link)
        self._links.drop(link)
        if member is not None:
            self._crew.leave(member)
            if not member.left:
                self._watch.went(member.identity)
            self._tell_all(ROSTER, self._roster())

    # -- what ranks are told ---------------------------------------------------------------------------------------
    def _tell(self, link: Link, kind: int, payload: bytes) -> None:
        try:
            link.send(kind, payload)
        except LinkClosed:
            self._lose(link)

    def _tell_all(self, kind: int, payload: bytes) -> None:
        for member in self._crew.all():
            self._tell(member.link, kind, payload)

    def _roster(self, *, leaving: bool = False) -> bytes:
        key, ranks = self._opening.key, self._crew.identities()
        return json_encode(asdict(Roster(self.generation, self.boot, key, self._identity, ranks, leaving)))
