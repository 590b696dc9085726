"""The reporter: a thread in every rank; hands what was measured to the node's sender, and becomes it when there is none.

What it handed over it keeps until the sender has it on disk, so that a sender may die at any moment.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Callable

from paceline.batches import batch_of
from paceline.digest import fresh_name
from paceline.joining import Joining
from paceline.members import Identity, Roster
from paceline.packing import utc_text
from paceline.recorder import Recorder
from paceline.say import say_once
from paceline.settings import Settings
from paceline.stacks import StackWatch
from paceline.wire import (
    ACK,
    BATCH,
    BEAT,
    HELLO,
    LEAVE,
    REFUSED,
    ROSTER,
    WELCOME,
    Batch,
    Link,
    LinkClosed,
    Waker,
    ack_decode,
    batch_encode,
    json_decode,
    json_encode,
    peer_pid,
)

if TYPE_CHECKING:
    from paceline.held import HeldWatch
    from paceline.hub import Hub

SILENT_S = 2.0
"""A sender that says nothing for this long is taken over, whether it is stopped or its interpreter is held."""
TICK_S = 0.5
MAX_UNACKED_BYTES = 512 * 1024
"""What a rank hands over before it waits for the sender to have it on disk; more stays in the recorder's queue."""
MAX_BATCH_ROWS = 250
RETRY_S = 0.05
FAULT_PAUSE_S = 1.0


@dataclass
class Hello:
    """What a rank says about itself and about the run."""

    resumed_from_step: int | None = None
    run_fields: dict[str, Any] = field(default_factory=dict)
    coords: dict[str, int] = field(default_factory=dict)
    key: str | None = None


class Reporter:
    """The reporting side of one rank."""

    def __init__(
        self, settings: Settings, recorder: Recorder, hello: Hello, *, find_key: Callable[[], str | None]
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._hello = hello
        self._identity = Identity(
            rank=settings.rank,
            process=fresh_name(),
            pid=None,
            local_rank=settings.local_rank,
            gpu=settings.gpu,
            gpu_index=settings.gpu_index,
            coords=hello.coords,
        )
        self._joining = Joining(settings, self._identity, find_key=find_key)
        self._stacks = StackWatch(recorder, limit_s=settings.stack_after_s)
        self._tick_s = min(TICK_S, settings.interval_s / 2)
        self._tick_at = 0.0
        self._link: Link | None = None
        self._heard_at = 0.0
        self._roster: Roster | None = None
        self._unacked: deque[Batch] = deque()
        self._number = 0
        self._held_back = False
        self._goodbye: dict[str, Any] | None = None
        self._goodbye_said = False
        self._deadline = 0.0
        self._held: HeldWatch | None = None
        self._waker = Waker()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-reporter", daemon=True)

    # -- from the training thread ----------------------------------------------------------------------------------
    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Hand over what there is now rather than at the next tick."""
        self._tick_at = 0.0
        self._waker.wake()

    def finish(self, words: dict[str, Any], timeout_s: float) -> None:
        """Hand over the rest, say goodbye with `words`; at most `timeout_s` until it is on disk or delivered."""
        self._deadline = monotonic() + timeout_s
        self._goodbye = words
        self.hurry()
        self._over.wait(timeout_s + 0.5)
        self._joining.leave(max(self._deadline - monotonic(), 0.2))

    def close_in_child(self) -> None:
        """Close what a forked child inherited, so that this process's death is seen although the child lives."""
        for held in self._waker.sockets() + ([self._link.sock] if self._link is not None else []):
            held.close()
        if self._joining.hub is not None:
            self._joining.hub.close_in_child()

    @property
    def hub(self) -> Hub | None:
        """The sender, where it is in this process."""
        return self._joining.hub

    # -- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._turn()
            except Exception as error:  # a fault of ours must not end the beats
                say_once("reporter", f"reporting failed and goes on: {error!r}")
                self._over.wait(FAULT_PAUSE_S)
        if self._held is not None:
            self._held.close()
        if self._link is not None:
            self._link.close()

    def _turn(self) -> None:
        if self._goodbye is not None and monotonic() > self._deadline:
            self._over.set()
            return
        link = self._link or self._greet(self._joining.enter(self._roster))
        if link is None:
            self._sleep(None, RETRY_S)
            return
        try:
            self._speak(link)
            self._sleep(link, max(self._tick_at - monotonic(), 0.0))
            self._listen(link)
        except LinkClosed:
            with contextlib.suppress(LinkClosed):
                self._listen(link)  # its last words
            self._part(link)
            return
        if monotonic() - self._heard_at > SILENT_S:
            self._abandon(link)

    def _sleep(self, link: Link | None, timeout_s: float) -> None:
        """Wait until the sender says something, somebody is in a hurry, or `timeout_s` has passed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._waker.reads, selectors.EVENT_READ)
            if link is not None:
                wants = selectors.EVENT_WRITE if link.unsent else 0
                selector.register(link.sock, selectors.EVENT_READ | wants)
            selector.select(timeout_s)
        self._waker.drain()

    def _speak(self, link: Link) -> None:
        link.flush()
        if monotonic() < self._tick_at:
            return
        self._watch_held()
        self._tick_at = monotonic() + self._tick_s
        self._hand_over(link)
        beat = self._recorder.beat()
        words: dict[str, Any] = {"step": beat.step, "phase": beat.phase, "age": round(beat.phase_age_s, 3)}
        lost = self._recorder.lost()
        link.send(BEAT, json_encode({**words, "lost": lost} if lost else words))
        if self._goodbye is not None and not self._goodbye_said and not self._recorder.rows:
            link.send(LEAVE, json_encode(self._goodbye))
            self._goodbye_said = True
        self._settle_goodbye()

    def _listen(self, link: Link) -> None:
        for kind, payload in link.receive():
            self._heard_at = monotonic()
            if kind == ACK:
                number = ack_decode(payload)
                while self._unacked and self._unacked[0].number <= number:
                    self._unacked.popleft()
                if self._held_back:
                    self._tick_at = 0.0
            elif kind == REFUSED:
                say_once("refused", str(json_decode(payload).get("text")))
                self._over.set()
            elif kind in (WELCOME, ROSTER):
                self._roster = self._as_seen(link, Roster.read(json_decode(payload)))
        self._settle_goodbye()

    def _settle_goodbye(self) -> None:
        if self._goodbye_said and not self._unacked:
            self._over.set()

    def _as_seen(self, link: Link, roster: Roster) -> Roster:
        """Return the roster with process numbers of this process's own view; where they can't be seen, none."""
        pid = peer_pid(link.sock)
        ranks = roster.ranks if pid else [replace(rank, pid=None) for rank in roster.ranks]
        return replace(roster, sender=replace(roster.sender, pid=pid), ranks=ranks)

    def _watch_held(self) -> None:
        """Arm the watchdog, and tell what it wrote while this thread could not run."""
        if not self._settings.held_stacks:
            return
        if self._held is None:
            from paceline.held import HeldWatch, held_file

            try:
                self._held = HeldWatch(held_file(self._joining.folder, self._identity.process))
            except OSError as error:
                say_once("held", f"stacks of a held interpreter can't be kept: {error}")
                self._settings = replace(self._settings, held_stacks=False)
                return
        stacks = self._held.news()
        if stacks:
            text = f"the interpreter was held until now\n{stacks}"
            self._recorder.fact("events", {"kind": "stack", "happened_at": utc_text(time()), "text": text})
        self._held.arm()

    # -- what there is to hand over --------------------------------------------------------------------------------
    def _hand_over(self, link: Link) -> None:
        stacks = self._stacks.check()
        if stacks:
            self._recorder.fact("events", {"kind": "stack", "happened_at": utc_text(time()), "text": stacks})
        self._held_back = False
        while True:
            if sum(batch.size for batch in self._unacked) > MAX_UNACKED_BYTES:
                self._held_back = True
                return
            rows = self._recorder.take_rows(MAX_BATCH_ROWS)
            facts = self._recorder.take_facts(MAX_BATCH_ROWS)
            if not rows and not facts:
                return
            self._number += 1
            batch = batch_of(
                self._number,
                rows,
                self._recorder.names,
                checkpoints=[fields for kind, fields in facts if kind == "checkpoints"],
                events=[fields for kind, fields in facts if kind == "events"],
            )
            self._unacked.append(batch)
            link.send(BATCH, batch_encode(batch))

    # -- coming and going ------------------------------------------------------------------------------------------
    def _greet(self, sock: socket.socket | None) -> Link | None:
        """Say hello and hand over again what no sender has on disk yet."""
        if sock is None:
            return None
        self._link = link = Link(sock)
        self._heard_at = monotonic()
        self._tick_at = 0.0
        self._goodbye_said = False
        words = {**asdict(self._hello), "identity": asdict(self._identity)}
        with contextlib.suppress(LinkClosed):  # noticed at the next word
            link.send(HELLO, json_encode(words))
            for batch in self._unacked:
                link.send(BATCH, batch_encode(batch))
        return link

    def _part(self, link: Link) -> None:
        """The sender is gone: look for another at once."""
        link.close()
        self._link = None

    def _abandon(self, link: Link) -> None:
        """The sender is there but says nothing: leave it, and never go back to it."""
        self._joining.avoid()
        with contextlib.suppress(LinkClosed):
            link.send(LEAVE, json_encode({"moving": True}))
        self._part(link)
