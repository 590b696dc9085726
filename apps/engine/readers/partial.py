"""Objects of which a part has another form than it should: that part is named, and the others are read."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec

Item = TypeVar("Item", bound=msgspec.Struct)

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def partly_read(
    raw: bytes | msgspec.Raw, kind: type[Item], *, about: frozenset[str]
) -> tuple[Item | None, dict[str, bytes]]:
    """Return an object as `kind`, without those of its fields that have another form, and these as they stood.

    raw: JSON. kind: what it should be. about: fields that say what the object is about; None comes back where one of them,
    or one that `kind` asks for, cannot be read, since the rest would then be told of something else.
    Cost: O(length). Source: ours.

    >>> class Save(msgspec.Struct):
    ...     step: int
    ...     took_s: float | None = None
    >>> partly_read(b'{"step": 5, "took_s": "nan"}', Save, about=frozenset({"step"}))
    (Save(step=5, took_s=None), {'took_s': b'"nan"'})
    >>> partly_read(b'{"step": "nan"}', Save, about=frozenset({"step"}))
    (None, {})
    """
    try:
        parts = _fields.decode(raw)
        wrong = {
            name: bytes(parts.pop(name)) for name, form in _forms(kind).items() if not _reads(parts.get(name), form)
        }
        found = None if wrong.keys() & about else msgspec.json.decode(msgspec.json.encode(parts), type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None, {}
    return found, wrong if found is not None else {}


@cache
def _forms(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.json.Decoder[Any]]:
    return {field.encode_name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(kind)}


def _reads(part: msgspec.Raw | None, form: msgspec.json.Decoder[Any]) -> bool:
    if part is None:
        return True
    try:
        form.decode(part)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
