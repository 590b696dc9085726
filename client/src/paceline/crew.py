"""The ranks that are connected to a sender, and what it needs to know of them together."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from paceline.gpu_names import GpuNames
from paceline.members import BEAT_VALID_S, Identity, Member
from paceline.procs import process_look
from paceline.wire import Link


class Crew:
    """Members by process; `own` is the process the sender lives in."""

    def __init__(self, own: str, *, wake: Callable[[], None]) -> None:
        self._own = own
        self._wake = wake
        self._members: dict[str, Member] = {}
        self._gpus: GpuNames | None = None

    def all(self) -> list[Member]:
        return list(self._members.values())

    def of_process(self, process: str) -> Member | None:
        return self._members.get(process)

    def of_link(self, link: Link) -> Member | None:
        return next((member for member in self._members.values() if member.link is link), None)

    def of_rank(self, rank: int) -> Member | None:
        return next((member for member in self._members.values() if member.identity.rank == rank), None)

    def join(self, identity: Identity, link: Link) -> Member:
        """Take a rank in; one that knows only its GPU's index gets its name as soon as that is known."""
        if identity.gpu is None:
            self._gpus = self._gpus or GpuNames(self._wake)
            identity = self._gpus.named(identity)
        member = Member(identity, link, heard_at=monotonic())
        self._members[identity.process] = member
        return member

    def leave(self, member: Member) -> None:
        self._members.pop(member.identity.process, None)

    def identities(self) -> list[Identity]:
        """Return who is here and has not said goodbye."""
        return [member.identity for member in self._members.values() if not member.left]

    def name_gpus(self) -> bool:
        """Give ranks their GPUs' names; return True if any got one just now."""
        if self._gpus is None or not self._gpus.news():
            return False
        for member in self._members.values():
            member.identity = self._gpus.named(member.identity)
        return True

    def others_have_left(self) -> bool:
        """True when all ranks but this process's have said goodbye."""
        return all(member.left for process, member in self._members.items() if process != self._own)

    def all_have_left(self) -> bool:
        """True when this process's own goodbye was heard as well; it may still be on its way through the socket."""
        own = self._members.get(self._own)
        return own is not None and own.left and self.others_have_left()


def is_another(member: Member, identity: Identity) -> bool:
    """Return True if `member` is alive, heard, and not the process of `identity`: two processes can't be one rank."""
    pid = member.identity.pid
    alive = pid is not None and pid != identity.pid and not process_look(pid).gone
    return alive and not member.left and monotonic() - member.heard_at < BEAT_VALID_S
