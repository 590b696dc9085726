"""Public ids: a prefix and the row's number in Crockford's base 32, so that no second column is needed."""

from apps.common.errors import NotFound

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUE = {letter: value for value, letter in enumerate(_ALPHABET)}
_LONGEST = 13
"""Thirteen letters hold 65 bits: more than a bigint."""

BIGGEST_ID = 2**63 - 1
"""Of a row's number: what PostgreSQL's bigint holds."""


def id_write(prefix: str, number: int) -> str:
    """Return the public id of row `number`.

    >>> id_write("run", 1000)
    'run_z8'
    """
    letters = ""
    while True:
        number, rest = divmod(number, 32)
        letters = _ALPHABET[rest] + letters
        if not number:
            return f"{prefix}_{letters}"


def id_read(prefix: str, text: str) -> int:
    """Return the row's number that `text` names.

    Raises:
        NotFound: `text` is no id with this prefix.

    >>> id_read("run", "run_z8")
    1000
    """
    head, _, letters = text.partition("_")
    if head != prefix or not letters or len(letters) > _LONGEST or any(x not in _VALUE for x in letters):
        raise NotFound(f"“{text[:80]}” is not the id of {_NOUNS.get(prefix, prefix)}.", id=text[:80])
    number = 0
    for letter in letters:
        number = number * 32 + _VALUE[letter]
    if number > BIGGEST_ID:
        raise NotFound(f"“{text[:80]}” is not the id of {_NOUNS.get(prefix, prefix)}.", id=text[:80])
    return number


_NOUNS = {
    "act": "an action",
    "att": "an attempt",
    "cluster": "a cluster",
    "drf": "a difference",
    "exc": "an exclusion",
    "fin": "a finding",
    "inc": "an incident",
    "node": "a node",
    "note": "a note",
    "ord": "an order",
    "run": "a run",
    "tok": "a token",
}
