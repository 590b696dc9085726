"""Who waits for whom in the database, for tests of two that come at once."""

from django.db import connection


def blocks_somebody() -> bool:
    """Return whether somebody waits for a lock that this connection holds."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
        )
        return bool(cursor.fetchone()[0])
