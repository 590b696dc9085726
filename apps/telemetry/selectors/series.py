"""The series of an owner: its state and the numbers of its metrics."""

from dataclasses import dataclass

from apps.engine.tiles.metrics import Metric, metric_of
from apps.telemetry.models import Series, SeriesMetric
from apps.telemetry.selectors.sql import cursor


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A series as readers see it. `numbers`: metric name → its number."""

    id: int
    kind: str
    owner_id: int
    version: int
    width: int
    first_step: int | None
    last_step: int | None
    settled_step: int | None
    hot_floor: int
    filled: int
    rewritten: int
    nonfinite: int
    closed: bool
    numbers: dict[str, int]

    def metric(self, name: str) -> Metric:
        """Return what is known about one of its metrics."""
        return metric_of(name, scope={"RANK": "rank", "GPU": "gpu", "NODE": "node"}[self.kind])  # type: ignore[arg-type]


def series_of(kind: str, owner_id: int) -> SeriesRow | None:
    """Return an owner's series, or None if nothing was ever written."""
    row = Series.objects.filter(kind=kind, owner_id=owner_id).first()
    if row is None:
        return None
    metrics = SeriesMetric.objects.filter(series=row).order_by("number").values_list("name", "number")
    return SeriesRow(
        id=row.pk,
        kind=row.kind,
        owner_id=row.owner_id,
        version=row.version,
        width=row.width,
        first_step=row.first_step,
        last_step=row.last_step,
        settled_step=row.settled_step,
        hot_floor=row.hot_floor,
        filled=row.filled,
        rewritten=row.rewritten,
        nonfinite=row.nonfinite,
        closed=row.closed,
        numbers=dict(metrics),
    )


def hot_floor_of(series_id: int) -> int:
    """Return the first column that is not sealed, as it is now."""
    with cursor() as c:
        c.execute("SELECT hot_floor FROM telemetry_series WHERE id = %s", (series_id,))
        row = c.fetchone()
        return int(row[0]) if row else 0
