"""Everything that writes runs, attempts, placements and checkpoints."""

from apps.runs.services.attempts import (
    AttemptEnded,
    AttemptLive,
    StateChanged,
    WorldSizeDiffers,
    attempt_end,
    attempt_failure_note,
    attempt_open,
    attempt_progress,
    attempt_rekey,
    attempt_start_error_note,
    run_lock,
)
from apps.runs.services.checkpoints import (
    CheckpointFact,
    checkpoint_note,
    checkpoint_status_refresh,
    checkpoint_trust_regain,
    checkpoint_trust_set,
    saves_lock,
)
from apps.runs.services.placement import RankPlace, placement_compare_claim, placement_merge
from apps.runs.services.runs import (
    ADMINISTRATIVE,
    DESCRIPTIVE,
    OPERATIONAL,
    run_cluster,
    run_put,
    slug_checked,
    status_update,
)

__all__ = [
    "ADMINISTRATIVE",
    "DESCRIPTIVE",
    "OPERATIONAL",
    "AttemptEnded",
    "AttemptLive",
    "CheckpointFact",
    "RankPlace",
    "StateChanged",
    "WorldSizeDiffers",
    "attempt_end",
    "attempt_failure_note",
    "attempt_open",
    "attempt_progress",
    "attempt_rekey",
    "attempt_start_error_note",
    "checkpoint_note",
    "checkpoint_status_refresh",
    "checkpoint_trust_regain",
    "checkpoint_trust_set",
    "placement_compare_claim",
    "placement_merge",
    "run_cluster",
    "run_lock",
    "run_put",
    "saves_lock",
    "slug_checked",
    "status_update",
]
