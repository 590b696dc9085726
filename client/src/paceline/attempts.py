"""From an attempt's key to its door on the server: every sender opens it by key, whoever is first; that is idempotent."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

from paceline.say import say_once
from paceline.spool import Spool, Target
from paceline.transport import Answer, Server, Verdict, path

CREATE_AFTER_S = 15.0
"""A run that rank 0's node has not created by then is created by whoever needs it."""


@dataclass
class _Known:
    attempt: str | None = None
    missing_since: float | None = None
    described: bool = False
    impossible: bool = False


class Attempts:
    """The attempts a sender delivers to; ids found are kept beside the spool, for whoever delivers next."""

    def __init__(self, server: Server, spool: Spool) -> None:
        self._server = server
        self._spool = spool
        self._known: dict[str, _Known] = {}

    def find(self, target: Target) -> tuple[str | None, Answer]:
        """Return the attempt's id, opening it if need be; without one, what the server said."""
        known = self._known.setdefault(target.label, _Known())
        known.attempt = known.attempt or self._spool.attempt_recall(target.label)
        if known.attempt is not None:
            return known.attempt, Answer(200)
        answer = self._open(known, target)
        found = answer.body.get("id")
        if answer.verdict is Verdict.DELIVERED and isinstance(found, str):
            known.attempt = found
            self._spool.attempt_remember(target.label, found)
        return known.attempt, answer

    def is_open(self, target: Target) -> bool:
        known = self._known.get(target.label)
        return known is not None and known.attempt is not None

    def is_impossible(self, target: Target) -> bool:
        """True once the server said that it can't make such a run, whoever asks."""
        known = self._known.get(target.label)
        return known is not None and known.impossible

    def forget(self, target: Target) -> None:
        """The server doesn't know this id (any more): find it by its key again."""
        self._known.pop(target.label, None)
        self._spool.attempt_forget(target.label)

    def _open(self, known: _Known, target: Target) -> Answer:
        """Open the attempt; the run is made first where it doesn't exist or there is something to say of it."""
        if target.creates and target.run_fields and not known.described:
            answer = self._run_put(target, target.run_fields)
            if answer.verdict is Verdict.AGAIN:
                return answer
            known.described = True
        answer = self._attempt_post(target)
        if answer.status == 404 and self._may_create(known, target):
            answer = self._run_put(target, {})
            # A door that makes runs says 404 to a name alone that no run can have. Without a code it was not this door:
            # another server's address, which somebody will put right.
            known.impossible = answer.status == 404 and bool(answer.code)
            if answer.verdict is Verdict.DELIVERED:
                answer = self._attempt_post(target)
        return answer

    def _may_create(self, known: _Known, target: Target) -> bool:
        if known.missing_since is None:
            known.missing_since = monotonic()
        return target.creates or monotonic() - known.missing_since > CREATE_AFTER_S

    def _run_put(self, target: Target, fields: dict[str, Any]) -> Answer:
        answer = self._server.request("PUT", path("runs", target.name), fields)
        if answer.verdict in (Verdict.DENIED, Verdict.NEVER, Verdict.NOT_YET):
            sentence = f"run {target.name} could not be described ({answer.status}): {answer.message}"
            say_once(f"run {target.name}", sentence)
        return answer

    def _attempt_post(self, target: Target) -> Answer:
        fields = {
            "key": target.key,
            "world_size": target.world_size,
            "resumed_from_step": target.resumed_from_step,
            "external_id": target.external_id,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return self._server.request("POST", path("runs", target.name, "attempts"), body)
