"""Everything that writes findings and detector states."""

from apps.diagnosis.services.evaluate import attempts_due, attempts_settle, clocks_evaluate, windows_evaluate
from apps.diagnosis.services.findings import (
    finding_absorbed,
    finding_considered,
    finding_mute,
    findings_claim,
    subject_words,
)

__all__ = [
    "attempts_due",
    "attempts_settle",
    "clocks_evaluate",
    "finding_absorbed",
    "finding_considered",
    "finding_mute",
    "findings_claim",
    "subject_words",
    "windows_evaluate",
]
