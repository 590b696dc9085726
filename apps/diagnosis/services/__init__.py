"""Everything that writes findings and detector states."""

from apps.diagnosis.services.evaluate import (
    Looked,
    attempt_catch_up,
    attempts_due,
    attempts_settle,
    attempts_unseen,
    clocks_evaluate,
    windows_due,
    windows_evaluate,
)
from apps.diagnosis.services.findings import (
    finding_absorbed,
    finding_considered,
    finding_mute,
    findings_claim,
    findings_dismiss,
    subject_words,
)

__all__ = [
    "Looked",
    "attempt_catch_up",
    "attempts_due",
    "attempts_settle",
    "attempts_unseen",
    "clocks_evaluate",
    "finding_absorbed",
    "finding_considered",
    "finding_mute",
    "findings_claim",
    "findings_dismiss",
    "subject_words",
    "windows_due",
    "windows_evaluate",
]
