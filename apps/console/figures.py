"""Charts as Plotly figures. Colours are names of the page's tokens, `var(--ink)`; the page puts in what its theme says.

Every figure: transparent paper, no title, no legend, horizontal grid only, one y axis, lines labelled at their end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

INK, INK2, INK3 = "var(--ink)", "var(--ink-2)", "var(--ink-3)"
RULE, RULE2, ACCENT, WARN, CRIT = (
    "var(--rule)",
    "var(--rule-2)",
    "var(--accent)",
    "var(--warn-mark)",
    "var(--crit-mark)",
)
SANS = "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"
LABEL_ROOM = 64
"""Pixels at the right for the label of a line's end."""
LINE_PX = 13.0
"""Two labels of 11 px must stand this far apart."""
STEADY = 0.01
"""A gauge that moves by less than this share is drawn as steady, not as a mountain of its noise."""
FLAG_ROOM = 0.17
"""Share of a chart's width that the words of a flag need: "attempt 12" in a third of a column."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: x (steps, or datetimes), y, its name, unit and dash."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    unit: str = ""
    colour: str = INK
    dash: str = "solid"
    digits: int = 2
    labelled: bool = True


@dataclass(frozen=True, slots=True)
class Flag:
    """A mark on a chart at an x: what happened there."""

    x: Any
    text: str
    colour: str = INK3


def gaps(values: NDArray[np.floating] | Sequence[float]) -> list[float | None]:
    """Return values as a figure takes them: what is absent or not finite is None, and the line has a gap there.

    >>> gaps([1.0, float("nan"), 2.0])
    [1.0, None, 2.0]
    """
    return [float(value) if np.isfinite(value) else None for value in np.asarray(values, dtype=float)]


def base(*, unit: str, height: int = 180, cut: bool = False, left: int = 52) -> go.Figure:
    """Return an empty figure in Paceline's manner; `cut` says on the axis that it does not begin at 0."""
    title = ", ".join(part for part in (unit, "axis cut" if cut else "") if part)
    figure = go.Figure()
    figure.update_layout(
        height=height,
        margin={"l": left, "r": LABEL_ROOM, "t": 18, "b": 26},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        showlegend=False,
        hovermode="x unified",
        dragmode="zoom",
        font={"family": SANS, "size": 11, "color": INK3},
        hoverlabel={"bgcolor": "var(--surface)", "bordercolor": RULE2, "font": {"color": INK, "size": 12, "family": SANS}},
        xaxis={
            "showgrid": False, "zeroline": False, "linecolor": RULE2, "ticks": "outside", "ticklen": 4,
            "tickcolor": RULE2, "tickformat": ",d", "nticks": 5, "fixedrange": False, "hoverformat": ",d",
        },
        yaxis={"gridcolor": RULE, "zeroline": False, "nticks": 5, "fixedrange": True, "separatethousands": True},
    )  # fmt: skip
    if title:
        figure.add_annotation(
            text=title, x=0, xref="paper", y=1, yref="paper", yanchor="bottom", xanchor="left", xshift=-left + 4,
            showarrow=False, font={"size": 11, "color": INK3},
        )  # fmt: skip
    return figure


def lines(
    drawn: Sequence[Line],
    *,
    unit: str,
    flags: Sequence[Flag] = (),
    reference: tuple[float, str] | None = None,
    height: int = 180,
    from_zero: bool = False,
) -> go.Figure:
    """Return lines on one axis, each labelled at its end, flags as thin rules, a dashed reference."""
    figure = base(unit=unit, height=height, cut=not from_zero and any(line.y for line in drawn))
    for line in drawn:
        digits = f".{line.digits}f"
        figure.add_trace(
            go.Scatter(
                x=list(line.x), y=list(line.y), mode="lines", name=line.name, connectgaps=False,
                line={"color": line.colour, "width": 1.5, "dash": line.dash},
                hovertemplate=f"%{{y:,{digits}}} {line.unit or unit}",
            )
        )  # fmt: skip
        if line.labelled:
            _label_end(figure, line)
    if reference is not None:
        value, words = reference
        figure.add_hline(y=value, line={"color": INK3, "width": 1, "dash": "dash"})
        figure.add_annotation(
            text=words, x=1, xref="paper", y=value, xanchor="left", xshift=6, yshift=_aside(drawn, value, height),
            showarrow=False, font={"size": 11, "color": INK3},
        )  # fmt: skip
    for flag, is_said in zip(flags, _said(drawn, flags), strict=True):
        figure.add_vline(x=flag.x, line={"color": flag.colour, "width": 1, "dash": "dot"})
        if is_said:
            figure.add_annotation(
                text=flag.text, x=flag.x, y=1, yref="paper", yanchor="bottom", showarrow=False,
                font={"size": 10, "color": INK2},
            )  # fmt: skip
    if from_zero:
        figure.update_yaxes(rangemode="tozero")
    return figure


def _aside(drawn: Sequence[Line], value: float, height: int) -> float:
    """Return by how many pixels a reference's words stand below or above it, so that a line's end keeps its own."""
    known = [y for line in drawn for y in line.y if y is not None]
    ends = [y for line in drawn if line.labelled for y in [y for y in line.y if y is not None][-1:]]
    if not ends:
        return 0.0
    span = (max(*known, value) - min(*known, value)) or 1.0
    off = (ends[-1] - value) / span * (height - 44)
    return 0.0 if abs(off) >= LINE_PX else (off - LINE_PX if off >= 0 else off + LINE_PX)


def _said(drawn: Sequence[Line], flags: Sequence[Flag]) -> list[bool]:
    """Return which flags have room for their words: the newest has, one too close before it stays a rule alone."""
    known = [x for line in drawn for x in line.x if isinstance(x, int | float)]
    span = (max(known) - min(known)) if known else 0
    said = [True] * len(flags)
    taken: float | None = None
    for place in sorted(range(len(flags)), key=lambda i: flags[i].x if span else -i, reverse=True):
        x = flags[place].x
        said[place] = not span or taken is None or taken - x > FLAG_ROOM * span
        if said[place]:
            taken = x
    return said


def _label_end(figure: go.Figure, line: Line) -> None:
    known = [y for y in line.y if y is not None]
    if not known:
        return
    y = known[-1]
    figure.add_annotation(
        text=f"{y:,.{line.digits}f}", x=1, xref="paper", y=y, xanchor="left", xshift=6, showarrow=False,
        font={"size": 11, "color": line.colour},
    )  # fmt: skip


def step_time(
    *,
    steps: Sequence[int],
    median_s: Sequence[float | None],
    own_best_s: float | None,
    times: Sequence[datetime | None] | None = None,
    slow_since: Any | None = None,
) -> go.Figure:
    """Return the strip above the heatmap: step time on its axis, own best dashed. `times` puts it on the time axis."""
    x: Sequence[Any] = times if times is not None else steps
    figure = base(unit="", height=62)
    known = [value for value in median_s if value is not None]
    figure.add_trace(
        go.Scatter(
            x=list(x), y=list(median_s), mode="lines", line={"color": INK, "width": 1.5}, connectgaps=False,
            hovertemplate="step %{customdata:,d}: %{y:.2f} s<extra></extra>", customdata=list(steps),
        )
    )  # fmt: skip
    low, high = _range(known, own_best_s)
    ticks = _step_ticks(known, own_best_s, apart=0.22 * (high - low))
    figure.update_layout(hovermode="closest", dragmode=False)
    figure.update_xaxes(visible=False, fixedrange=True, **({"type": "date"} if times is not None else {}))
    figure.update_yaxes(
        range=[low, high], showgrid=False, ticks="", linecolor=RULE2, showline=True,
        tickvals=[value for value, _ in ticks], ticktext=[said for _, said in ticks],
    )  # fmt: skip
    if own_best_s is not None:
        figure.add_hline(y=own_best_s, line={"color": INK3, "width": 1, "dash": "dash"})
    if slow_since is not None:
        figure.add_vline(x=slow_since, line={"color": RULE2, "width": 1})
        figure.add_annotation(
            text="slow since here", x=slow_since, xanchor="right", xshift=-6, y=1, yref="paper", yanchor="top",
            showarrow=False, font={"size": 11, "color": INK2},
        )  # fmt: skip
    _peak(figure, x, median_s, high)
    return figure


def _peak(figure: go.Figure, x: Sequence[Any], values: Sequence[float | None], high: float) -> None:
    """Say how high the highest step goes that the axis cuts off."""
    known = [(value, place) for place, value in enumerate(values) if value is not None]
    if not known:
        return
    value, place = max(known)
    if value > high:
        figure.add_annotation(
            text=f"{value:.1f} s", x=x[place], xanchor="left", xshift=6, y=1, yref="paper", yanchor="top",
            showarrow=False, font={"size": 11, "color": INK3},
        )  # fmt: skip


def _range(known: Sequence[float], best: float | None) -> tuple[float, float]:
    """Return the axis of the strip: from just under the least to the 99th percentile, so one save does not flatten it."""
    if not known:
        return 0.0, 1.0
    low = min(min(known), best if best is not None else min(known))
    high = max(float(np.quantile(known, 0.99)), float(np.median(known)) * 1.1)
    room = max(high - low, 0.05 * max(high, 1e-6))
    return low - 0.15 * room, high + 0.25 * room


def _step_ticks(known: Sequence[float], best: float | None, *, apart: float) -> list[tuple[float, str]]:
    """Return what stands at the strip's axis, outside the curve: the own best, and the newest where it is clear of it."""
    ticks = [] if best is None else [(best, f"best {best:.2f} s")]
    if known and (best is None or abs(known[-1] - best) > apart):
        ticks.append((known[-1], f"{known[-1]:.2f} s"))
    return ticks


def gauges(
    *,
    times: Sequence[datetime],
    worst: Sequence[float | None],
    median: Sequence[float | None],
    unit: str,
    digits: int = 0,
    from_zero: bool = False,
    until: datetime | None = None,
) -> go.Figure:
    """Return a node's gauge over time: the worst of its GPUs solid, their median dashed; the axis ends at `until`."""
    figure = lines(
        [
            Line("worst GPU", times, worst, unit=unit, digits=digits),
            Line("median", times, median, unit=unit, digits=digits, colour=INK3, dash="dash", labelled=False),
        ],
        unit=unit,
        height=150,
        from_zero=from_zero or unit == "share",
    )
    if until is not None and times:
        figure.update_xaxes(range=[times[0], until])
    known = [value for value in (*worst, *median) if value is not None]
    if not from_zero and known and max(known) - min(known) < STEADY * abs(max(known)):
        middle, room = (max(known) + min(known)) / 2, 5 * STEADY * abs(max(known))
        figure.update_yaxes(range=[middle - room, middle + room], nticks=3)
    if from_zero and not any(worst):
        figure.update_yaxes(range=[0, 1], nticks=2)
    figure.update_xaxes(type="date", tickformat="%H:%M", hoverformat="%H:%M:%S")
    if unit == "share":
        figure.update_yaxes(tickformat=".0%", range=[0, 1.02])
    return figure
