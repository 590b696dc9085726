"""Reading what people and policies want done, what it would cost, and what was launched."""

from apps.remediation.selectors.actions import (
    action_by_code,
    action_by_id,
    action_holding,
    actions_of,
    actions_overdue,
    actions_waiting,
    actions_watched,
    launch_of_attempt,
    launches_alive,
    orders_due,
    orders_stale,
    orders_uncertain,
)
from apps.remediation.selectors.guards import Blast, GuardRow, GuardSettings, guard_settings, guards_of_exclusion
from apps.remediation.selectors.preview import HappensRow, Preview, action_preview, restart_preview
from apps.remediation.selectors.prices import Price, prices_of
from apps.remediation.selectors.rows import (
    ActionRow,
    LaunchFact,
    LaunchRow,
    Milestone,
    OrderInHand,
    OrderRow,
    Outcome,
    order_key,
)

__all__ = [
    "ActionRow",
    "Blast",
    "GuardRow",
    "GuardSettings",
    "HappensRow",
    "LaunchFact",
    "LaunchRow",
    "Milestone",
    "OrderInHand",
    "OrderRow",
    "Outcome",
    "Preview",
    "Price",
    "action_by_code",
    "action_by_id",
    "action_holding",
    "action_preview",
    "actions_of",
    "actions_overdue",
    "actions_waiting",
    "actions_watched",
    "guard_settings",
    "guards_of_exclusion",
    "launch_of_attempt",
    "launches_alive",
    "order_key",
    "orders_due",
    "orders_stale",
    "orders_uncertain",
    "prices_of",
    "restart_preview",
]
