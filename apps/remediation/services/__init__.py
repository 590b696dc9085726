"""Everything that writes actions, orders and launches."""

from apps.remediation.services.checking import check_set, check_unset
from apps.remediation.services.deciding import NotHeardYet, action_accept, action_dismiss, action_settle
from apps.remediation.services.drifts import DriftMoved, drift_decide
from apps.remediation.services.dropped import nodes_dropped_note
from apps.remediation.services.jobs import jobs_seen
from apps.remediation.services.leaving import attempts_left_end
from apps.remediation.services.moving import ActionMoved
from apps.remediation.services.nodes import nodes_seen
from apps.remediation.services.ordering import order_claim, order_look_claim
from apps.remediation.services.proposing import finding_consider, findings_consider, findings_reconsider
from apps.remediation.services.requesting import action_request
from apps.remediation.services.scheduling import SchedulerFields, scheduler_set
from apps.remediation.services.settings import command_copied, guard_set
from apps.remediation.services.settling import order_doubt, order_look_again, order_settle
from apps.remediation.services.silence import attempts_silent_end
from apps.remediation.services.until import exclusion_due, exclusion_keep
from apps.remediation.services.waiting import action_advance, action_cancel, action_expire, action_overtaken
from apps.remediation.services.watching import action_watch, launch_noted
from apps.remediation.services.wishes import (
    LONGEST_OUT,
    ActionOpen,
    CheckpointMoved,
    ConfirmationNeeded,
    GuardClosed,
    NodeStateDiffers,
    NotOurs,
)

__all__ = [
    "LONGEST_OUT",
    "ActionMoved",
    "ActionOpen",
    "CheckpointMoved",
    "ConfirmationNeeded",
    "DriftMoved",
    "GuardClosed",
    "NodeStateDiffers",
    "NotHeardYet",
    "NotOurs",
    "SchedulerFields",
    "action_accept",
    "action_advance",
    "action_cancel",
    "action_dismiss",
    "action_expire",
    "action_overtaken",
    "action_request",
    "action_settle",
    "action_watch",
    "attempts_left_end",
    "attempts_silent_end",
    "check_set",
    "check_unset",
    "command_copied",
    "drift_decide",
    "exclusion_due",
    "exclusion_keep",
    "finding_consider",
    "findings_consider",
    "findings_reconsider",
    "guard_set",
    "jobs_seen",
    "launch_noted",
    "nodes_dropped_note",
    "nodes_seen",
    "order_claim",
    "order_doubt",
    "order_look_again",
    "order_look_claim",
    "order_settle",
    "scheduler_set",
]
