"""The charts of a run's page."""

from typing import Any

import plotly.graph_objects as go

from apps.console import figures
from apps.runs.selectors import RunRow

CHARTS = {"steptime": "Step time", "step": "Step time", "tokens": "Tokens a second", "loss": "Loss"}


def charts_listed(run: RunRow) -> list[tuple[str, str]]:
    """Return the charts under the heatmap, as (name, title)."""
    del run
    return []


def chart_of(run: RunRow, name: str, *, query: Any, attempt_id: int | None) -> go.Figure:
    """Return one chart."""
    del query, attempt_id, name
    return figures.step_time(steps=[], median_s=[], own_best_s=run.own_best_step_s)
