"""From inbox rows to values: see `attempt.py`."""

from apps.telemetry.services.fold.attempt import Folded, inbox_fold

__all__ = ["Folded", "inbox_fold"]
