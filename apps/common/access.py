"""Who is asking, and what they may do. Accounts fills this in; every room below a door reads it."""

from dataclasses import dataclass

READ = "read"
REPORT = "report"
OPERATE = "operate"
ADMIN = "admin"
SCOPES = (READ, REPORT, OPERATE, ADMIN)


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


SYSTEM = Principal(kind="SYSTEM", id=0, name="Paceline", scopes=frozenset(SCOPES))
