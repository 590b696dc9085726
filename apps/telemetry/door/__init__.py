"""The lean door for reports, beside Django: see `app.py` for the way of a request."""

from apps.telemetry.door.app import ReportDoor

__all__ = ["ReportDoor"]
