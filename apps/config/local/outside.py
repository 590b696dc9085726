"""Asking servers that a site brings itself, before anything depends on them."""

from urllib.parse import urlsplit

from apps.config.local.problems import LocalProblem

PATIENCE_S = 5
OLDEST_POSTGRES = 150000
"""server_version_num of PostgreSQL 15.0."""


class ServerUnreachable(LocalProblem):
    """A server that the environment names does not answer, or not as it should."""

    code = "server_unreachable"


def address_words(url: str) -> str:
    """Return `url` without what is secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def database_check(url: str) -> None:
    """Make sure that the database behind `url` answers and is new enough.

    Raises: ServerUnreachable.
    """
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=PATIENCE_S) as connection:
            version = connection.info.server_version
    except psycopg.Error as error:
        words = " ".join(str(error).split())
        raise ServerUnreachable(f"The database in DATABASE_URL ({address_words(url)}) refuses: {words}") from error
    if version < OLDEST_POSTGRES:
        raise ServerUnreachable(
            f"The database in DATABASE_URL ({address_words(url)}) is PostgreSQL {version // 10000}; Paceline needs 15 "
            "or newer."
        )


def broker_check(url: str) -> None:
    """Make sure that the Redis-compatible server behind `url` answers.

    Raises: ServerUnreachable.
    """
    import redis

    try:
        with redis.Redis.from_url(url, socket_connect_timeout=PATIENCE_S, socket_timeout=PATIENCE_S) as connection:
            connection.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        raise ServerUnreachable(f"The server in REDIS_URL ({address_words(url)}) does not answer: {error}") from error
