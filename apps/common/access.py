"""Who is asking, and what they may do. Accounts fills this in; every room below a door reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

READ = "read"
REPORT = "report"
OPERATE = "operate"
ADMIN = "admin"
SCOPES = (READ, REPORT, OPERATE, ADMIN)

COMMANDS = ("command", "commands")
"""Under these words stands, in what is kept of an action, what somebody copied or ran by hand: a launcher's own command too."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: `kind` USER, TOKEN or SYSTEM, its row's number, a name to print, its scopes, its cluster or None for all."""

    kind: str
    id: int
    name: str
    scopes: frozenset[str]
    cluster_id: int | None = None

    @property
    def key(self) -> str:
        """Return a stable text that names this caller, for idempotency keys and audit."""
        return f"{self.kind.lower()}:{self.id}"

    def may(self, scope: str) -> bool:
        """Return whether the caller holds `scope`."""
        return scope in self.scopes

    def shown(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the caller may read of what is kept of an action or an event: commands only who may act."""
        return {name: value for name, value in kept.items() if name not in COMMANDS or self.may(OPERATE)}


SYSTEM = Principal(kind="SYSTEM", id=0, name="Paceline", scopes=frozenset(SCOPES))
