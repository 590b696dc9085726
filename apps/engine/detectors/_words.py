"""How numbers read in a verdict's sentences."""


def in_words(seconds: float) -> str:
    """Return a duration for a sentence.

    >>> in_words(0.0042), in_words(1.774), in_words(75), in_words(900), in_words(9000)
    ('4.2 ms', '1.77 s', '75 s', '15 min', '2.5 h')
    """
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def plural(count: int, word: str) -> str:
    """Return the count with its word.

    >>> plural(1, "step"), plural(8, "step")
    ('1 step', '8 steps')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
