"""Tags and filters of the pages: words for numbers, times that the reader's browser puts into its zone, status shapes."""

import json
import re
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import conditional_escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from apps.common.clock import rfc3339
from apps.common.ids import id_write
from apps.console import words
from apps.console.selectors.plotly import plotly_style_ids as _plotly_style_ids

register = template.Library()

NAME = re.compile(r"(?<![\w-])[A-Za-z][\w.]{0,40}(?:-[\w.]{0,30}){0,4}-\d[\w.]{0,20}(?![\w-])")
"""A name with a number behind a hyphen, as nodes have: practice-03, gpu-a-17."""
UNIT = re.compile(r"(\d) (s|ms|min|h|d|%|×|°C|MHz|GHz|W|GPU-h|GiB|MB|GB|TB|ranks?|steps?|nodes?|GPUs?)(?![\w-])")

for name in (
    "whole",
    "number",
    "seconds",
    "percent",
    "gpu_hours",
    "about_gpu_hours",
    "about_number",
    "hours_number",
    "times",
    "spell",
    "minutes",
    "size",
    "ranks",
    "cause",
    "closed",
):
    register.filter(name, getattr(words, name))


PAST = 1.05
"""Slower than its peers by more than this is said in bold, and drawn as a warning."""


@register.simple_tag
def when(moment: datetime | None, form: str = "near", never: str = "never") -> SafeString | str:
    """Return a `<time>`; `form` is clock, hm, day, near, full, ago, for or until (see static/js/times.js)."""
    if moment is None:
        return never
    shown = moment.astimezone(UTC)
    text = {"clock": f"{shown:%H:%M:%S}", "hm": f"{shown:%H:%M}"}.get(form, f"{shown:%d} {shown:%b} {shown:%H:%M} UTC")
    return format_html(
        '<time datetime="{}" data-as="{}" title="{}">{}</time>', rfc3339(moment), form, words.utc(moment), text
    )


@register.simple_tag
def status(token: str, text: str, extra: str = "") -> SafeString:
    """Return a status: shape, word and colour together."""
    return format_html('<span class="st {}{}">{}</span>', token, f" {extra}" if extra else "", text)


@register.simple_tag
def bar(
    part: float | None,
    whole: float | None = 1.0,
    add: float = 0.0,
    ticks: int = 0,
    label: str = "",
    most: float | None = None,
) -> SafeString:
    """Return a meter: `part` of `whole`, then `add` more; past `most`, a limit below the whole, it is over.

    SVG, since a strict policy allows no style attributes.
    """
    span = whole or 1.0
    first = min(100.0, 100.0 * max(0.0, part or 0.0) / span)
    more = min(100.0 - first, 100.0 * max(0.0, add) / span)
    kind = "over" if (part or 0.0) + add > (span if most is None else most) else "fill"
    at = [f"{100 * i / ticks:.2f}" for i in range(1, ticks)]
    marks = format_html_join("", '<line class="tick" x1="{0}" x2="{0}" y1="0" y2="8"/>', ((x,) for x in at))
    return format_html(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="{}" width="{}" height="8"/><rect class="add" x="{}" width="{}" height="8"/>{}</svg>',
        label, kind, f"{first:.2f}", f"{first:.2f}", f"{more:.2f}", marks,
    )  # fmt: skip


@register.simple_tag
def plotly_style_ids() -> list[str]:
    """Return the ids that keep Plotly from writing styles into a page."""
    return _plotly_style_ids()


@register.simple_tag
def worst_bar(share: float, ratio: float) -> SafeString:
    """Return the bar of a worst list, from 0 to 1; what is slower than the table's limit has the colour of a warning."""
    width = max(1.0, min(100.0, 100 * share))
    return format_html(
        '<svg class="bar worst{}" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="fill" width="{}" height="8"/></svg>',
        " past" if ratio > PAST else "",
        f"{width:.2f}",
    )


@register.filter
def as_json(value: Any) -> str:
    """Return JSON for a data attribute; the template escapes it."""
    return json.dumps(value, separators=(",", ":"), default=str)


@register.filter
def iso(moment: datetime | None) -> str:
    """Return a moment as RFC 3339, or nothing."""
    return rfc3339(moment) or ""


@register.filter
def get(mapping: Any, key: Any) -> Any:
    """Return a mapping's value, or None."""
    return mapping.get(key) if mapping else None


@register.filter
def plural(n: int, noun: str) -> str:
    """Return a count with its noun: `{{ n|plural:"node" }}`, `{{ n|plural:"class,classes" }}`."""
    one, _, many = noun.partition(",")
    return words.count(int(n), one, many)


@register.filter
def evidence(value: Any, unit: str = "") -> str:
    """Return a number of evidence with its unit, or a word as it is."""
    if value is None:
        return words.UNKNOWN
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if unit == "share":
        return words.percent(value)
    digits = 0 if isinstance(value, int) else words.digits_for(value)
    return f"{value:,.{digits}f}" + (f"{words.NBSP}{unit}" if unit else "")


@register.filter
def code(number: int, prefix: str) -> str:
    """Return the public id of a row: `{{ action.id|code:"act" }}`."""
    return id_write(prefix, number)


@register.filter
def add7(x: float) -> str:
    """Return where the words of a bar's piece begin: seven units in."""
    return f"{x + 7:.1f}"


@register.filter
def spaced(name: str) -> str:
    """Return a name of a program's field as words."""
    return name.replace("_", " ")


@register.filter
def hundred(share: float) -> str:
    """Return a share as a bare percentage for a form's field."""
    return f"{share * 100:g}"


@register.filter
def rack(name: str) -> str:
    """Return a rack's name as a heading: a bare number gets its noun."""
    return f"rack {name}" if name[:1].isdigit() else name


@register.filter
def age(seconds: float) -> str:
    """Return a short age with a digit below ten seconds."""
    return f"{seconds:.1f}{words.NBSP}s" if seconds < 10 else words.spell(seconds)


PLAIN = re.compile(r"\b(" + "|".join(name for name in (*words.CAUSES, *words.CLOSED) if "_" in name) + r")\b")


@register.filter
def plain(sentence: str) -> SafeString:
    """Return a row of the log as people read it: names of causes in words, numbers and their units together."""
    return joined(PLAIN.sub(lambda found: words.plain_name(found.group(1)), sentence))


@register.filter
def joined(sentence: str) -> SafeString:
    """Return a sentence in which a number and its unit never part, and the name of a node is never broken."""
    whole = UNIT.sub(lambda found: f"{found.group(1)}{words.NBSP}{found.group(2)}", sentence)
    return mark_safe(NAME.sub(r'<span class="nowrap">\g<0></span>', conditional_escape(whole)))  # noqa: S308 - escaped
