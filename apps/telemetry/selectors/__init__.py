"""Reading telemetry: frozen rows and arrays."""

from apps.telemetry.selectors.blocks import columns_read
from apps.telemetry.selectors.columns import (
    ColumnInfo,
    SettledColumns,
    columns_between,
    columns_newest,
    columns_settled,
    settled_watermark,
)
from apps.telemetry.selectors.door import DoorState, door_state
from apps.telemetry.selectors.facts import (
    FactRow,
    NonFiniteRow,
    RefusalRow,
    StackRow,
    exits_unfolded,
    facts_of,
    metrics_of,
    nonfinite_of,
    rank_said,
    refusals_of,
    stacks_of,
)
from apps.telemetry.selectors.gauges import (
    GaugeRow,
    gauges_known,
    gauges_newest,
    gauges_version,
    newest_of,
    node_gauges,
)
from apps.telemetry.selectors.leaving import Leaving, ranks_left, senders_expected
from apps.telemetry.selectors.news import attempt_news, attempts_with_news
from apps.telemetry.selectors.ranks import RanksNow, ranks_now
from apps.telemetry.selectors.senders import SenderHeard, SenderRow, senders_heard, senders_of
from apps.telemetry.selectors.series import SeriesRow, series_of

__all__ = [
    "ColumnInfo",
    "DoorState",
    "FactRow",
    "GaugeRow",
    "Leaving",
    "NonFiniteRow",
    "RanksNow",
    "RefusalRow",
    "SenderHeard",
    "SenderRow",
    "SeriesRow",
    "SettledColumns",
    "StackRow",
    "attempt_news",
    "attempts_with_news",
    "columns_between",
    "columns_newest",
    "columns_read",
    "columns_settled",
    "door_state",
    "exits_unfolded",
    "facts_of",
    "gauges_known",
    "gauges_newest",
    "gauges_version",
    "metrics_of",
    "newest_of",
    "node_gauges",
    "nonfinite_of",
    "rank_said",
    "ranks_left",
    "ranks_now",
    "refusals_of",
    "senders_expected",
    "senders_heard",
    "senders_of",
    "series_of",
    "settled_watermark",
    "stacks_of",
]
