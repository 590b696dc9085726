"""The newest beats of a sender's ranks as bytes, and back."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from apps.engine.detection import Phase
from apps.engine.readers.partial import partly_read

BEAT = np.dtype([("rank", "<i4"), ("step", "<i8"), ("phase", "u1"), ("age_s", "<f4"), ("heard", "<f8")])
"""One rank's newest beat: `heard` is its receive time in unix s; step -1 = not in a step yet."""

Beats = NDArray[np.void]


class _Beat(msgspec.Struct):
    rank: int
    step: int | None = None
    phase: str = "unknown"
    phase_age_s: float | None = None


_all = msgspec.json.Decoder(list[_Beat])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_one = msgspec.json.Decoder(_Beat)


def beats_none() -> Beats:
    """Return no beats."""
    return np.empty(0, BEAT)


def beats_packed(found: Sequence[tuple[int, int | None, str, float | None]], heard: float) -> Beats:
    """Return beats (rank, step, phase word, phase age in s) heard at one moment."""
    rows = [
        (rank, -1 if step is None else step, Phase.of(phase), 0.0 if age is None or age != age else age, heard)
        for rank, step, phase, age in found
    ]
    return np.array(rows, BEAT)


def beats_merged(old: bytes, new: Beats) -> bytes:
    """Return the newest beat of each rank: the new ones, and the old ones of ranks that say nothing new."""
    if len(old):
        before = np.frombuffer(old, BEAT)
        if before["rank"].tobytes() != new["rank"].tobytes():
            new = np.concatenate([before[~np.isin(before["rank"], new["rank"])], new])
    return new.tobytes()


def beats_raw(raw: bytes, heard: float) -> Beats:
    """Return the beats in a report's own `beats`; what is no beat is left out."""
    try:
        found = _all.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        found = list(_readable(raw))
    usable = [(b.rank, b.step, b.phase, b.phase_age_s) for b in found if _is_usable(b)]
    return beats_packed(usable, heard)


def _readable(raw: bytes) -> Iterator[_Beat]:
    try:
        items = _raws.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return
    for item in items:
        try:
            yield _one.decode(item)
        except (msgspec.MsgspecError, RecursionError):
            beat, _ = partly_read(item, _Beat, about=frozenset({"rank", "step"}))
            if beat is not None:
                yield beat


def _is_usable(beat: _Beat) -> bool:
    return 0 <= beat.rank < 2**31 and (beat.step is None or 0 <= beat.step <= 2**53)
