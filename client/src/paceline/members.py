"""The ranks of one node as its sender sees them: who is here, where each one is, who went and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from paceline.held import held_file, held_text
from paceline.packing import utc_text
from paceline.procs import WORDS, process_look
from paceline.wire import Link, LinkClosed

BEAT_VALID_S = 2.0
"""A beat older than this is not told on: a rank whose process doesn't run has no beat, and that says something."""
SILENT_AFTER_S = 5.0
"""A process that exists and says nothing for this long is worth a line: stopped, or its interpreter is held."""
DYING_S = 0.3
"""How long a process may take from closing its sockets to being collectable; until then its exit code can't be read."""
RETURN_S = 5.0
"""A rank whose connection broke although its process lives comes back within this, or is told as gone from view."""

MAX_TEXT = 4_000
"""What the server keeps of one event's text."""


@dataclass(frozen=True)
class Identity:
    """Who a rank is; what it says in its HELLO."""

    rank: int
    process: str
    pid: int | None
    local_rank: int
    gpu: str | None = None
    gpu_index: str = ""
    coords: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Roster:
    """What a successor must know: who sends, under which boot and key, and which ranks are on this node."""

    generation: int
    boot: str
    key: str | None
    sender: Identity
    ranks: list[Identity]
    leaving: bool = False

    @staticmethod
    def read(words: dict[str, Any]) -> Roster:
        """Return the roster in a WELCOME or ROSTER frame; raise LinkClosed if it is none."""
        try:
            ranks = [Identity(**rank) for rank in words["ranks"]]
            return Roster(**{**words, "sender": Identity(**words["sender"]), "ranks": ranks})
        except (KeyError, TypeError) as error:
            raise LinkClosed("not a roster") from error


@dataclass
class Member:
    """A rank connected to this sender."""

    identity: Identity
    link: Link
    heard_at: float
    beat: dict[str, Any] | None = None
    beat_at: float = 0.0
    left: bool = False
    silence_told: bool = False


@dataclass
class Missing:
    """A rank that went without saying so, until it is known how."""

    identity: Identity
    since: float
    told: bool = False
    clean: bool = False


class Watch:
    """Notices exits and silences of a node's ranks and makes events of them."""

    def __init__(self, node: str, folder: str) -> None:
        self.node = node
        self._folder = folder
        self.missing: dict[str, Missing] = {}
        self.events: list[dict[str, Any]] = []
        self.urgent = False

    def went(self, identity: Identity, *, clean: bool = False) -> None:
        """A connection ended without a goodbye, or a process is about to end: find out how; `clean` is its own word."""
        self.missing[identity.process] = Missing(identity, monotonic(), clean=clean)

    def came(self, identity: Identity) -> None:
        """A rank is connected (again); an earlier process of the same rank that is gone stays an exit."""
        self.missing.pop(identity.process, None)

    def left(self, identity: Identity, words: dict[str, Any]) -> None:
        """A rank said goodbye: finished is no event; an end without `finish` is an exit, whose code the kernel knows."""
        self.missing.pop(identity.process, None)
        if words.get("finished") or words.get("moving"):
            return
        clean = bool(words.get("clean"))
        if words.get("code") is None and identity.pid is not None:
            self.went(identity, clean=clean)
        elif clean:
            self.exit(identity, code=0, text=_unfinished(identity))
        else:
            self.exit(identity, code=words.get("code"), text=str(words.get("text") or "")[:MAX_TEXT])

    def gone_alone(self, process: str) -> None:
        """Nobody is left to see how this process ends: say at least that it does."""
        missing = self.missing.pop(process, None)
        if missing is not None:
            self.exit(missing.identity, code=0 if missing.clean else None, text=_unfinished(missing.identity))

    def clean_settle(self) -> None:
        """Take the word of those who said that they end as they should: whoever watched them goes as well."""
        for process in [process for process, missing in self.missing.items() if missing.clean]:
            self.gone_alone(process)

    @property
    def in_a_hurry(self) -> bool:
        """True while a process may be dying this very moment."""
        return any(not missing.told for missing in self.missing.values())

    def look(self) -> None:
        """Settle what can be settled about the missing."""
        now = monotonic()
        for process, missing in list(self.missing.items()):
            identity, age = missing.identity, now - missing.since
            if identity.pid is None:
                if age > RETURN_S:
                    self._settle(process)
                    self.exit(identity, text="its connection broke and it did not come back")
                continue
            seen = process_look(identity.pid)
            if seen.gone and (seen.code is not None or seen.signal is not None or age > DYING_S or seen.state is None):
                self._settle(process)
                unseen = missing.clean and seen.code is None and seen.signal is None
                self.exit(
                    identity,
                    code=0 if unseen else seen.code,
                    signal=seen.signal,
                    text=_unfinished(identity) if unseen else "",
                )
            elif not seen.gone and age > RETURN_S and not missing.told:
                missing.told = True
                word = WORDS.get(seen.state or "", "in an unknown state")
                text = f"rank {identity.rank}: process {identity.pid} no longer reports; it is {word}"
                self.note(identity.rank, text)

    def exit(self, identity: Identity, *, code: int | None = None, signal: int | None = None, text: str = "") -> None:
        """Make an exit event and have it sent at once."""
        how = f"signal {signal}" if signal else f"code {code}" if code is not None else "how is not known"
        event = {
            "kind": "exit",
            "happened_at": utc_text(time()),
            "rank": identity.rank,
            "node": self.node,
            "code": code,
            "signal": signal,
            "text": text or f"rank {identity.rank}: process {identity.pid or 'unknown'} ended, {how}",
        }
        self.events.append({key: value for key, value in event.items() if value is not None})
        self.urgent = True

    def silences(self, members: list[Member]) -> None:
        """Say once of each rank that its process is there but says nothing, and once that it speaks again."""
        now = monotonic()
        for member in members:
            quiet, rank, pid = now - member.heard_at, member.identity.rank, member.identity.pid
            if quiet > SILENT_AFTER_S and not member.silence_told:
                member.silence_told = True
                seen = process_look(pid) if pid else None
                state = WORDS.get(seen.state or "", "in an unknown state") if seen else "in an unknown state"
                self.note(
                    rank,
                    f"rank {rank}: no word for {quiet:.0f} s; process {pid or 'unknown'} is {state}"
                    + (", so its interpreter may be held" if seen and seen.state in ("R", "S") else ""),
                )
                stacks = held_text(held_file(self._folder, member.identity.process))
                if stacks:
                    self._stack(rank, f"the interpreter of process {pid} is held\n{stacks}")
            elif quiet < BEAT_VALID_S and member.silence_told:
                member.silence_told = False
                self.note(rank, f"rank {rank}: reports again")

    def note(self, rank: int | None, text: str) -> None:
        event: dict[str, Any] = {"kind": "note", "happened_at": utc_text(time()), "node": self.node, "text": text}
        if rank is not None:
            event["rank"] = rank
        self.events.append(event)

    def _stack(self, rank: int, text: str) -> None:
        event = {"kind": "stack", "happened_at": utc_text(time()), "rank": rank, "node": self.node, "text": text}
        self.events.append(event)

    def take(self) -> list[dict[str, Any]]:
        events, self.events = self.events, []
        return events

    def _settle(self, process: str) -> None:
        self.missing.pop(process, None)


def _unfinished(identity: Identity) -> str:
    return f"rank {identity.rank}: ended without finish()"


def last_beat(member: Member) -> dict[str, Any]:
    """Return the beat of a rank that has finished: it is gone by its own word, and nobody misses it."""
    step = (member.beat or {}).get("step")
    return {"rank": member.identity.rank, "step": step, "phase": "shutdown", "phase_age_s": 0.0}


def beat_of(member: Member, now: float) -> dict[str, Any] | None:
    """Return the member's beat as of `now`, or None if it is too old to be told on."""
    age = now - member.beat_at
    if member.beat is None or age > BEAT_VALID_S:
        return None
    return {
        "rank": member.identity.rank,
        "step": member.beat.get("step"),
        "phase": member.beat.get("phase", "unknown"),
        "phase_age_s": round(float(member.beat.get("age", 0.0)) + age, 3),
    }
