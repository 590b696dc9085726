"""The base of every typed error, at the bottom of the import order so that all layers can share it."""

from typing import ClassVar


class PacelineError(Exception):
    """Something Paceline anticipates: a sentence for people, a stable code for programs, facts for both.

    >>> error = PacelineError("Tile is cut.", have=12, need=48)
    >>> error.message, error.facts, error.code
    ('Tile is cut.', {'have': 12, 'need': 48}, 'internal')
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        if not self.facts:
            return self.message
        told = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.message} ({told})"


class EngineError(PacelineError):
    """The numeric code could not do what it was asked."""

    code = "engine_error"


class ArgumentInvalid(EngineError):
    """An argument lies outside what a function is defined for."""

    code = "argument_invalid"
    http_status = 422
