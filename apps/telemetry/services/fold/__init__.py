"""From inbox rows to values: `attempt.py` for ranks by step, `cluster.py` for gauges by 15 s."""

from apps.telemetry.services.fold.attempt import inbox_fold
from apps.telemetry.services.fold.cluster import cluster_fold
from apps.telemetry.services.fold.taking import Folded

__all__ = ["Folded", "cluster_fold", "inbox_fold"]
