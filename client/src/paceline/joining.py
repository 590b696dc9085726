"""How a rank comes to the node's sender: it finds it, or becomes it, or, where ranks can't meet, is its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from paceline.election import MeetingPlace
from paceline.members import Identity, Roster
from paceline.settings import Settings

if TYPE_CHECKING:
    from paceline.hub import Hub

TRIES_BEFORE_SOLO = 5
BRIEF_S = 10.0
"""A sender that lives shorter than this failed at once; the next in this process waits as long before it begins."""


class Joining:
    """One rank's way to a sender, and the sender itself where it is in this process."""

    def __init__(self, settings: Settings, identity: Identity, *, find_key: Callable[[], str | None]) -> None:
        self.hub: Hub | None = None
        self._settings = settings
        self._identity = identity
        self._find_key = find_key
        self._place = MeetingPlace(
            settings.local_dir, url=settings.url, run=settings.run, node=settings.node, launch=settings.launch
        )
        self._generation = 0
        self._silent_generation = 0
        self._failed_claims = 0
        self._hub_at = -BRIEF_S

    @property
    def folder(self) -> str:
        return self._place.folder

    def enter(self, roster: Roster | None) -> socket.socket | None:
        """Return a connection to the node's sender, or None if it is worth another try; `roster` is the last one's."""
        if self.hub is not None and not self.hub.alive:
            self.hub = None
        if not self._place.open():
            return self._alone(roster)
        newest = max(self._place.newest(), self._silent_generation)
        sock = self._place.connect(newest) if newest > self._silent_generation else None
        if sock is not None:
            self._generation = newest
            return sock
        if self.hub is None and monotonic() - self._hub_at < BRIEF_S:
            return None  # a sender of ours has just failed
        return self._claim(newest + 1, roster)

    def avoid(self) -> None:
        """Never go back to the present sender: it is there, but says nothing."""
        self._silent_generation = max(self._generation, self._silent_generation)

    def leave(self, timeout_s: float) -> None:
        """Stop the sender if it is in this process, and go."""
        hub = self.hub
        if hub is not None:
            hub.stop(timeout_s)
            self._place.release(hub.generation)
        self._place.close()

    def _claim(self, generation: int, roster: Roster | None) -> socket.socket | None:
        """Be the sender, and connect to oneself like every other rank."""
        listener = self._place.claim(generation)
        if listener is not None:
            self._failed_claims = 0
            self._place.tidy()
            self._start(generation, roster, listener, superseded=lambda: self._place.newest() > generation)
            self._generation = generation
            return self._place.connect(generation)
        if self._place.newest() < generation:
            self._failed_claims += 1  # nobody else got it either: sockets can't be had in this folder
        return self._alone(roster) if self._failed_claims >= TRIES_BEFORE_SOLO else None

    def _alone(self, roster: Roster | None) -> socket.socket:
        """Send for this rank only."""
        mine, theirs = socket.socketpair()
        self._start(0, roster, None, superseded=lambda: False, attached=theirs)
        self._generation = 0
        return mine

    def _start(
        self,
        generation: int,
        roster: Roster | None,
        listener: socket.socket | None,
        *,
        superseded: Callable[[], bool],
        attached: socket.socket | None = None,
    ) -> None:
        from paceline.hub import Hub  # what a sender needs is loaded in the one process that is it

        hub = Hub(
            self._settings,
            identity=replace(self._identity, pid=os.getpid()),
            generation=generation,
            folder=self.folder,
            listener=listener,
            predecessor=roster,
            superseded=superseded,
            find_key=self._find_key,
        )
        if attached is not None:
            hub.attach(attached)
        hub.start()
        self.hub, self._hub_at = hub, monotonic()
