"""Reading times that Python's calendar does not hold, so that one stored row never stops a page or a sweep."""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import DataError, adapters
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from apps.common.clock import NEWEST_AT, OLDEST_AT

TIMESTAMPTZ = adapters.types["timestamptz"].oid


def far_times_read(connection: BaseDatabaseWrapper, **_more: Any) -> None:
    """Let a new connection read a time past year 9999 as the newest one that is any, and one before year 1 as the oldest."""
    own = connection.connection.adapters
    for form in (Format.TEXT, Format.BINARY):
        usual = own.get_loader(TIMESTAMPTZ, form)
        if not hasattr(usual, "is_bounded"):  # a connection out of the pool has been here before
            own.register_loader(TIMESTAMPTZ, _bounded(usual, form))


def _bounded(usual: Any, form: Format) -> type[Loader]:
    class Bounded(Loader):
        format = form
        is_bounded = True
        timezone = getattr(usual, "timezone", None)  # what Django compares with its own

        def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
            super().__init__(oid, context)
            self._load = usual(oid, context).load

        def load(self, data: Buffer) -> Any:
            try:
                return self._load(data)
            except (DataError, ValueError, OverflowError):
                return OLDEST_AT if _is_early(bytes(data), form) else NEWEST_AT

    return Bounded


def _is_early(data: bytes, form: Format) -> bool:
    if form is Format.BINARY:
        return int.from_bytes(data, "big", signed=True) < 0
    return data.startswith(b"-") or data.endswith(b"BC")
