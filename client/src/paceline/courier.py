"""Takes reports, keeps them on disk, delivers them: a thread of its own, so that a slow server delays nobody.

Fresh reports go before the backlog; the end of an attempt goes after its reports.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Callable

from paceline.asking import entry_ask
from paceline.attempts import Attempts
from paceline.drops import Drops
from paceline.say import say_once
from paceline.spool import Entry, Spool, boot_of, is_end, label_of
from paceline.transport import Answer, Backoff, Server, Verdict, longest_wait_s, path

ADOPT_EVERY_S = 10.0
MEMORY_MAX_BYTES = 4 * 1024 * 1024
"""What is kept in memory where the disk refuses."""
DENIED_AT_LEAST_S = 10.0
BACKLOG_PAUSE_S = 0.02


@dataclass
class Lane:
    """What is to be delivered to one target, and when to try again; `failed`: the last try came to nothing."""

    label: str
    names: OrderedDict[str, None] = field(default_factory=OrderedDict)
    ends: OrderedDict[str, None] = field(default_factory=OrderedDict)
    fresh: str | None = None
    backoff: Backoff = field(default_factory=Backoff)
    denied: bool = False
    refused: bool = False
    failed: bool = False

    def next(self) -> str | None:
        """Return what to send next: what just came, then the oldest, then the end."""
        if self.fresh is not None:
            return self.fresh
        return next(iter(self.names), None) or next(iter(self.ends), None)

    def __contains__(self, name: str) -> bool:
        return name == self.fresh or name in self.names or name in self.ends

    def waits_for(self, boots: set[str]) -> bool:
        """Return whether anything that waits here comes from one of these senders."""
        return any(boot_of(name) in boots for name in (*self.names, *self.ends, self.fresh) if name is not None)

    def put(self, name: str, *, fresh: bool) -> None:
        if is_end(name):
            self.ends[name] = None
            return
        if self.fresh is not None:
            self.wait_in_line(self.fresh)
        if fresh:
            self.fresh = name
        else:
            self.names[name] = None

    def drop(self, name: str) -> None:
        if self.fresh == name:
            self.fresh = None
        self.names.pop(name, None)
        self.ends.pop(name, None)

    def wait_in_line(self, name: str) -> None:
        """A fresh report that could not be delivered is backlog."""
        if self.fresh == name:
            self.fresh = None
            self.names[name] = None


class Courier:
    """The delivering thread of one sender."""

    def __init__(self, server: Server, spool: Spool, *, boot: str, drops: Drops, interval_s: float) -> None:
        self.boot = boot
        self.drops = drops
        self.delivered = 0
        self.last_answer: Answer | None = None
        self.refused: list[Any] = []
        self.on_kept: Callable[[dict[str, int]], None] = lambda _acks: None
        self._server = server
        self._spool = spool
        self._attempts = Attempts(server, spool)
        self._inbox: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._lanes: dict[str, Lane] = {}
        self._memory: dict[str, Entry] = {}
        self._longest_s = longest_wait_s(interval_s)
        self._backoff = Backoff(last_s=self._longest_s)
        self._boots = {boot}
        self._adopt_at = 0.0
        self._stop_at: float | None = None
        self._lock = spool.hold(boot)
        self._thread = threading.Thread(target=self._run, name="paceline-courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, entry: Entry) -> None:
        """Hand over an entry; `on_kept` is called with its acks once it is on disk."""
        self._inbox.put(entry)

    def adopt(self, boot: str) -> None:
        """Deliver the entries of a sender this one follows, which may still hold its lock."""
        self._boots.add(boot)
        self._adopt_at = 0.0

    def close_in_child(self) -> None:
        """Close this boot's lock in a forked child, which would hold it beyond its parent's death."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def away(self) -> bool:
        """True while the server can't be reached."""
        return self._backoff.open(monotonic())

    @property
    def waiting(self) -> int:
        """Entries not delivered yet."""
        return self._inbox.qsize() + sum(
            len(lane.names) + len(lane.ends) + bool(lane.fresh) for lane in self._lanes.values()
        )

    def stop(self, timeout_s: float) -> None:
        """Deliver what can be delivered within `timeout_s`, then stop; the rest stays on disk."""
        self._backoff.worked()  # one more try each: the last chance for a while
        for lane in list(self._lanes.values()):
            lane.failed = False
            if not lane.denied:
                lane.backoff.worked()
        self._stop_at = monotonic() + timeout_s
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s + 0.5)

    # -- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        self.drops.add("reports nobody could take for a week", self._spool.tidy())
        while not self._done():
            try:
                self._take(self._pause())
                self._adopt_orphans()
                self._deliver_one()
            except Exception as error:  # a fault of ours in one report must not end the delivery of the others
                say_once("courier", f"a report could not be handled: {error!r}")
                self.drops.add("errors of the client's own")
                sleep(1.0)
        self._spool.let_go(self.boot, self._lock)
        self._server.close()

    def _done(self) -> bool:
        if self._stop_at is None:
            return False
        if monotonic() >= self._stop_at:
            return True
        return self._inbox.empty() and not any(self._is_worth_a_wait(lane) for lane in self._lanes.values())

    def _is_worth_a_wait(self, lane: Lane) -> bool:
        """Return whether stopping waits for a lane: while it may go on, or holds what is ours. Others' waits for others."""
        return lane.next() is not None and not lane.denied and (not lane.failed or lane.waits_for(self._boots))

    def _pause(self) -> float:
        now = monotonic()
        if self._ready() is not None:
            return 0.0
        waits = [self._adopt_at - now, self._backoff.until - now if self._backoff.open(now) else 1.0]
        waits += [lane.backoff.until - now for lane in self._lanes.values() if lane.backoff.open(now)]
        return min(max(min(waits), 0.01), 1.0)

    def _ready(self) -> Lane | None:
        """Return a lane that has something to send now; lanes take turns."""
        now = monotonic()
        if self._backoff.open(now):
            return None
        for lane in list(self._lanes.values()):
            if lane.next() is not None and not lane.backoff.open(now):
                return lane
        return None

    def _take(self, timeout_s: float) -> None:
        """Keep what was handed over: one entry waited for, then all that is there."""
        try:
            entry = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
            while True:
                if entry is not None:
                    self._keep(entry)
                entry = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _keep(self, entry: Entry) -> None:
        lane = self._lane(entry.target.label)
        if lane.refused:
            self.drops.add("reports of an attempt the server refuses")
            self.on_kept(entry.acks)
            return
        try:
            for name in self._spool.write(entry):
                self._forget(name)
                self.drops.add("reports dropped from a full spool")
        except OSError as error:
            say_once("spool", f"the spool {self._spool.folder} can't be written ({error}); reports are kept in memory")
            self._keep_in_memory(entry)
        lane.put(entry.name, fresh=True)
        self.on_kept(entry.acks)

    def _keep_in_memory(self, entry: Entry) -> None:
        self._memory[entry.name] = entry
        while sum(len(held.body) for held in self._memory.values()) > MEMORY_MAX_BYTES and len(self._memory) > 1:
            oldest = next(iter(self._memory))
            self._forget(oldest)
            self.drops.add("reports dropped from memory while the disk refused")

    def _lane(self, label: str) -> Lane:
        return self._lanes.setdefault(label, Lane(label, backoff=Backoff(last_s=self._longest_s)))

    def _forget(self, name: str) -> None:
        self._memory.pop(name, None)
        self._lane(label_of(name)).drop(name)

    def _adopt_orphans(self) -> None:
        now = monotonic()
        if now < self._adopt_at:
            return
        self._adopt_at = now + ADOPT_EVERY_S
        names = self._spool.orphans(self._boots)
        for boot in self._boots - {self.boot}:
            names += self._spool.names(boot)
        for name in names:
            lane = self._lane(label_of(name))
            if name not in lane:
                lane.put(name, fresh=False)

    # -- delivery --------------------------------------------------------------------------------------------------
    def _deliver_one(self) -> None:
        lane = self._ready()
        name = lane.next() if lane else None
        if lane is None or name is None:
            return
        self._lanes[lane.label] = self._lanes.pop(lane.label)  # to the end of the queue
        entry = self._memory.get(name) or self._spool.read(name)
        if entry is None:
            lane.drop(name)
            return
        answer = self._send(entry)
        self.last_answer = answer
        self._judge(lane, entry, answer)
        if boot_of(name) != self.boot or len(lane.names) > 1:
            sleep(BACKLOG_PAUSE_S)

    def _send(self, entry: Entry) -> Answer:
        target = entry.target
        if target.kind == "node":
            return self._server.request("POST", path("nodes", target.name, entry.door), entry.body)
        if target.kind == "check":
            answer = entry_ask(self._server, entry)
            self.refused += answer.body.get("refused") or []
            return answer
        attempt, answer = self._attempts.find(target)
        if attempt is None:
            return answer
        return self._server.request("POST", path("attempts", attempt, entry.door), entry.body)

    def _judge(self, lane: Lane, entry: Entry, answer: Answer) -> None:
        now = monotonic()
        verdict = answer.verdict
        lane.failed = verdict is not Verdict.DELIVERED
        if verdict is Verdict.DELIVERED:
            self._backoff.worked()
            lane.backoff.worked()
            lane.denied = False
            self.delivered += 1
            self._let_go(entry)
        elif entry.door == "end" and 400 <= answer.status < 500 and verdict in (Verdict.NOT_YET, Verdict.NEVER):
            self._let_go(entry)  # ended already, or never opened: there is nothing left to end
        elif verdict is Verdict.AGAIN:
            self._backoff.failed(now, retry_after_s=answer.retry_after_s)
            if answer.status == 0:
                say_once("away", f"{self._server.address} cannot be reached ({answer.message}); reports wait on disk")
            lane.wait_in_line(entry.name)
        elif verdict is Verdict.DENIED:
            say_once(
                "token",
                f"the server does not accept the token ({answer.status}): {answer.message.rstrip('.')}; reports wait",
            )
            lane.denied = True
            lane.backoff.failed(now, at_least_s=DENIED_AT_LEAST_S)
            lane.wait_in_line(entry.name)
        elif verdict is Verdict.NEVER or self._is_refused_for_good(entry, answer):
            self._refuse(lane, entry, answer)
        else:
            self._not_yet(lane, entry, answer, now)

    def _not_yet(self, lane: Lane, entry: Entry, answer: Answer, now: float) -> None:
        if answer.status == 404 and self._attempts.is_open(entry.target):
            self._attempts.forget(entry.target)  # the server was set up anew, or the attempt purged
        if answer.code == "ATTEMPT_LIVE":
            say_once(lane.label, f"another attempt of {entry.target.name} is still reporting; reports wait on disk")
        lane.backoff.failed(now, retry_after_s=answer.retry_after_s)
        lane.wait_in_line(entry.name)

    def _is_refused_for_good(self, entry: Entry, answer: Answer) -> bool:
        """A conflict other than a live attempt stays one: the key is over, or belongs to another world size. So does a
        name that no run can have."""
        if self._attempts.is_open(entry.target):
            return False
        if answer.status == 409:
            return answer.code != "ATTEMPT_LIVE"
        return answer.status == 404 and self._attempts.is_impossible(entry.target)

    def _refuse(self, lane: Lane, entry: Entry, answer: Answer) -> None:
        say_once(f"{lane.label}{answer.status}", f"{entry.target.name}: refused ({answer.status}): {answer.message}")
        lost = [entry.name]
        if entry.target.kind == "attempt" and not self._attempts.is_open(entry.target):
            lane.refused = True
            lost = list({entry.name, *lane.names, *lane.ends} | ({lane.fresh} if lane.fresh else set()))
        self.drops.add("reports the server refused", len(lost))
        for name in lost:
            self._forget(name)
            self._spool.remove(name)

    def _let_go(self, entry: Entry) -> None:
        self._forget(entry.name)
        self._spool.remove(entry.name)
