"""The clockwork, as data: which task runs how often on which queue.

Every row is a sweep that finds its work in the database, so that a lost message costs at most one period.
"""

QUEUES = ("fold", "watch", "orders", "slow")

SWEEPS: dict[str, tuple[str, float]] = {
    # task name: (queue, period in seconds)
    "telemetry.inbox_sweep": ("fold", 2.0),
    "telemetry.tiles_sweep": ("slow", 10.0),
    "telemetry.series_trim": ("slow", 300.0),
    "diagnosis.windows_sweep": ("watch", 2.0),
    "diagnosis.clocks_sweep": ("watch", 2.0),
    "incidents.findings_sweep": ("watch", 2.0),
    "incidents.incidents_settle": ("watch", 10.0),
    "incidents.notices_sweep": ("orders", 2.0),
    "remediation.policies_sweep": ("watch", 5.0),
    "remediation.orders_sweep": ("orders", 1.0),
    "remediation.launches_watch": ("orders", 1.0),
    "remediation.attempts_left": ("watch", 2.0),
    "remediation.attempts_silence": ("slow", 60.0),
    "remediation.schedulers_sweep": ("slow", 1.0),
    "remediation.ledger_sweep": ("orders", 1.0),
    "remediation.launches_trim": ("slow", 3600.0),
    "accounts.failures_sweep": ("slow", 60.0),
    "accounts.keys_trim": ("slow", 3600.0),
}

TASKS: dict[str, str] = {
    # Tasks that are asked for when something happened, and their queue; the sweeps above find the same work by the clock.
    "telemetry.inbox_fold": "fold",
    "telemetry.cluster_fold": "fold",
    "diagnosis.windows_evaluate": "watch",
    "remediation.policies_consider": "watch",
    "remediation.order_run": "orders",
    "remediation.order_look": "orders",
    "remediation.check_run": "slow",
    "remediation.order_again": "slow",
    "remediation.scheduler_read": "slow",
}

ROUTES: dict[str, dict[str, str]] = {
    name: {"queue": queue} for name, queue in [*TASKS.items(), *((name, queue) for name, (queue, _) in SWEEPS.items())]
}
