"""Errors that doors turn into answers. Each class fixes code, HTTP status and whether trying again can help."""

from apps.engine.errors import PacelineError

__all__ = [
    "BadRequest",
    "Busy",
    "Conflict",
    "Forbidden",
    "NotFound",
    "PacelineError",
    "TooLarge",
    "Unavailable",
    "Unprocessable",
]


class BadRequest(PacelineError):
    """The request cannot be read."""

    code = "bad_request"
    http_status = 400


class Forbidden(PacelineError):
    """The caller is known and may not do this."""

    code = "forbidden"
    http_status = 403


class NotFound(PacelineError):
    """Nothing of that name exists, or the caller may not know that it does."""

    code = "not_found"
    http_status = 404


class Conflict(PacelineError):
    """The request contradicts what is already there; the facts say with what."""

    code = "conflict"
    http_status = 409


class TooLarge(PacelineError):
    """The request is past a bound."""

    code = "too_large"
    http_status = 413


class Unprocessable(PacelineError):
    """Understood, but not possible."""

    code = "unprocessable"
    http_status = 422


class Busy(PacelineError):
    """Too much is waiting already; the sender keeps what it has and tries again."""

    code = "busy"
    http_status = 429
    retryable = True


class Unavailable(PacelineError):
    """A part that is needed does not answer at present."""

    code = "unavailable"
    http_status = 503
    retryable = True
