"""Everything that writes findings and detector states."""

from apps.diagnosis.services.evaluate import (
    Looked,
    attempts_due,
    attempts_settle,
    clocks_evaluate,
    windows_due,
    windows_evaluate,
)
from apps.diagnosis.services.findings import (
    finding_absorbed,
    finding_considered,
    finding_mute,
    findings_claim,
    subject_words,
)

__all__ = [
    "Looked",
    "attempts_due",
    "attempts_settle",
    "clocks_evaluate",
    "finding_absorbed",
    "finding_considered",
    "finding_mute",
    "findings_claim",
    "subject_words",
    "windows_due",
    "windows_evaluate",
]
