"""What detection agrees on: windows in, states kept, verdicts out. Detectors stand in `apps.engine.detectors`."""

from apps.engine.detection.arrays import Beats, Columns, Nonfinite, Placement, WindowMalformed
from apps.engine.detection.detector import NO_TELEMETRY_S, Delay, Detector, Limit, Minimum, Needs
from apps.engine.detection.skip import skip_columns
from apps.engine.detection.state import State, StateUnreadable
from apps.engine.detection.verdict import (
    Answer,
    Cells,
    Coverage,
    Evidence,
    Healthy,
    Proposal,
    Subject,
    Undecided,
    Verdict,
    ranks_in_words,
    verdicts_in,
)
from apps.engine.detection.window import Attempt, Checkpoint, Fact, NodeSeries, PastFault, Window
from apps.engine.detection.words import (
    Certainty,
    Class,
    CloseReason,
    Level,
    NonfiniteKind,
    Phase,
    ProposalKind,
    SubjectKind,
    Trigger,
)

__all__ = [
    "NO_TELEMETRY_S",
    "Answer",
    "Attempt",
    "Beats",
    "Cells",
    "Certainty",
    "Checkpoint",
    "Class",
    "CloseReason",
    "Columns",
    "Coverage",
    "Delay",
    "Detector",
    "Evidence",
    "Fact",
    "Healthy",
    "Level",
    "Limit",
    "Minimum",
    "Needs",
    "NodeSeries",
    "Nonfinite",
    "NonfiniteKind",
    "PastFault",
    "Phase",
    "Placement",
    "Proposal",
    "ProposalKind",
    "State",
    "StateUnreadable",
    "Subject",
    "SubjectKind",
    "Trigger",
    "Undecided",
    "Verdict",
    "Window",
    "WindowMalformed",
    "ranks_in_words",
    "skip_columns",
    "verdicts_in",
]
