"""How numbers and times are said on pages, and read from them. A number and its unit are joined by a no-break space."""

from datetime import UTC, datetime

NBSP = "\u00a0"
UNKNOWN = "not measured"
MOST_DIGITS = 15
"""More than any step, rank or row has, and sure to fit into the database's numbers."""

CAUSES = {
    "checkpoint_queue": "saves wait in a queue",
    "checkpoint_stale": "checkpoint too old",
    "compute_straggler": "slow compute",
    "data_stall": "waits for data",
    "gc_pause": "collection pauses",
    "hang": "hang",
    "no_recovery": "no automatic recovery",
    "no_telemetry": "no reports",
    "nodes_down": "nodes down together",
    "numeric_fault": "not a number",
    "rank_lost": "lost rank or node",
    "restart_loop": "restarting in vain",
    "thermal_throttle": "throttles on heat",
}
"""What people call a cause. A cause that is not here is called by its name, with spaces."""


def cause(name: str) -> str:
    """Return a cause as people call it; the name itself is for programs and for searching.

    >>> cause("compute_straggler"), cause("link_flap")
    ('slow compute', 'link flap')
    """
    return CAUSES.get(name, name.replace("_", " "))


CLOSED = {
    "attempt_ended": "the attempt ended",
    "merged": "told by another finding",
    "recovered": "it recovered",
    "late": "seen late",
}
"""Why a finding is closed, in words."""


def closed(reason: str) -> str:
    """Return why a finding is closed, in words.

    >>> closed("ATTEMPT_ENDED"), closed("")
    ('the attempt ended', '')
    """
    return CLOSED.get(reason.lower(), reason.lower().replace("_", " "))


def plain_name(name: str) -> str:
    """Return a name that stands in a row of the log in words."""
    return CAUSES.get(name) or CLOSED.get(name) or name


def whole_of(text: str | None) -> int | None:
    """Return the whole number that a text of a form or an address is, None where it is none.

    >>> whole_of("48431"), whole_of("²"), whole_of("-1"), whole_of("9" * 40), whole_of("")
    (48431, None, None, None, None)
    """
    digits = text or ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS else None


def whole(value: float | None) -> str:
    """Return a count with thousands separated by commas.

    >>> whole(48431)
    '48,431'
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with a fixed count of digits after the point.

    >>> number(1455.0, 0), number(9.4, 2)
    ('1,455', '9.40')
    """
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def digits_for(value: float) -> int:
    """Return how many digits after the point three figures of `value` need, 0 to 4."""
    size = abs(value)
    for digits, least in ((0, 100), (1, 10), (2, 1), (3, 0.1)):
        if size >= least:
            return digits
    return 4 if size else 0


def seconds(value: float | None) -> str:
    """Return a duration of a step or phase: seconds with two digits, milliseconds below a tenth of a second.

    >>> seconds(11.19), seconds(0.0412)
    ('11.19\\xa0s', '41.2\\xa0ms')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.2f}{NBSP}s" if abs(value) >= 0.1 or value == 0 else f"{value * 1000:.3g}{NBSP}ms"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share 0..1 as percent; percent exists only on pages.

    >>> percent(0.359)
    '35.9\\xa0%'
    """
    return UNKNOWN if share is None else f"{share * 100:.{digits}f}{NBSP}%"


def gpu_hours(value: float | None) -> str:
    """Return GPU-hours, with digits only where they matter.

    >>> gpu_hours(266.4), gpu_hours(0.02), gpu_hours(0.004)
    ('266\\xa0GPU-h', '0.02\\xa0GPU-h', 'under 0.01\\xa0GPU-h')
    """
    if value is not None and 0 < value < 0.005:
        return f"under 0.01{NBSP}GPU-h"
    return UNKNOWN if value is None else f"{hours_number(value)}{NBSP}GPU-h"


def hours_number(value: float) -> str:
    """Return the number alone of an amount of hours."""
    return f"{value:,.{min(2, digits_for(value) if value < 10 else 0)}f}"


def about_gpu_hours(value: float | None) -> str:
    """Return GPU-hours of an estimate: two significant digits, so that a figure that is read does not flicker.

    >>> about_gpu_hours(266.4), about_gpu_hours(1.234), about_gpu_hours(0.0234), about_gpu_hours(0.001)
    ('270\\xa0GPU-h', '1.2\\xa0GPU-h', '0.02\\xa0GPU-h', 'under 0.01\\xa0GPU-h')
    """
    if value is None or 0 < value < 0.005:
        return gpu_hours(value)
    return f"{about_number(value)}{NBSP}GPU-h"


def about_number(value: float) -> str:
    """Return an estimate as a number with two significant digits, hundredths at the finest."""
    return f"{value:.2f}" if value < 1 else f"{float(f'{value:.2g}'):,.12g}"


def about_s(value: float) -> float:
    """Return an estimated duration in seconds as coarse as people say it: it stands still while it is read.

    >>> [about_s(x) for x in (1.2, 11, 13, 140, 1900, 25560, 187200)]
    [5, 10, 15, 140, 1920, 25800, 187200]
    """
    unit = next(
        (unit for under, unit in ((60, 5), (300, 20), (3600, 60), (36_000, 600), (172_800, 1800)) if value < under),
        3600,
    )
    return max(unit, round(value / unit) * unit)


def about(value: float | None) -> str:
    """Return an estimated duration as people say it.

    >>> about(13), about(140)
    ('15\\xa0s', '2\\xa0min 20\\xa0s')
    """
    return UNKNOWN if value is None else spell(about_s(value))


def times(value: float | None) -> str:
    """Return a ratio.

    >>> times(1.2512)
    '1.25\\xa0×'
    """
    return UNKNOWN if value is None else f"{value:.2f}{NBSP}×"


def spell(value: float | None) -> str:
    """Return a duration as people say it; `static/js/times.js` says the same words.

    >>> [spell(x) for x in (12, 140, 1860, 25560, 187200)]
    ['12\\xa0s', '2\\xa0min 20\\xa0s', '31\\xa0min', '7\\xa0h 06\\xa0min', '2\\xa0d 4\\xa0h']
    """
    if value is None:
        return UNKNOWN
    s = max(0, round(value))
    if s < 60:
        return f"{s}{NBSP}s"
    minutes, rest = divmod(s, 60)
    if s < 600 and rest:
        return f"{minutes}{NBSP}min {rest}{NBSP}s"
    if s < 3600:
        return f"{minutes}{NBSP}min"
    hours, minutes = divmod(minutes, 60)
    if s < 172_800:
        return f"{hours}{NBSP}h {minutes:02d}{NBSP}min"
    return f"{hours // 24}{NBSP}d {hours % 24}{NBSP}h"


def minutes(value: float | None) -> str:
    """Return a downtime as m:ss, or h:mm:ss past an hour.

    >>> minutes(520), minutes(4.2)
    ('8:40', '0:04')
    """
    if value is None:
        return UNKNOWN
    s = max(0, round(value))
    if s >= 3600:
        return f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}"
    return f"{s // 60}:{s % 60:02d}"


def size(value: float | None) -> str:
    """Return bytes in the decimal unit that leaves one to three figures.

    >>> size(2_300_000_000_000)
    '2.3\\xa0TB'
    """
    if value is None:
        return UNKNOWN
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= least:
            return f"{value / least:.1f}{NBSP}{unit}"
    return f"{value:.0f}{NBSP}B"


def utc(moment: datetime) -> str:
    """Return a moment in words, UTC: what pages show without JavaScript, and under the pointer with it."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def count(n: int, one: str, many: str = "") -> str:
    """Return a count with its noun.

    >>> count(1, "node"), count(2, "node"), count(3, "class", "classes")
    ('1 node', '2 nodes', '3 classes')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def ranks(numbers: list[int] | tuple[int, ...], most: int = 4) -> str:
    """Return ranks as ranges.

    >>> ranks([128, 129, 130, 135])
    '128–130, 135'
    """
    spans: list[list[int]] = []
    for rank in sorted(numbers):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    said = [f"{a}" if a == b else f"{a}–{b}" for a, b in spans[:most]]
    return ", ".join(said) + (", …" if len(spans) > most else "")
