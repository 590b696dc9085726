"""What the ledger's clockwork has to do."""

from datetime import datetime

from apps.fleet.selectors import exclusions_due


def lines_due(*, now: datetime) -> list[int]:
    """Return exclusions of ours whose time has come, the longest due first."""
    return [row.id for row in exclusions_due(now=now)]
