"""The place that a subject belongs to: findings of one place are one incident (DESIGN §1)."""

from apps.engine.detection import Subject, SubjectKind


def place_key_of(subject: Subject) -> str:
    """Return the place of a subject: its node, stage, link, shared place, or the run itself.

    >>> place_key_of(Subject(SubjectKind.RANK, rank=5, node="trn017"))
    'NODE:trn017'
    >>> place_key_of(Subject(SubjectKind.RUN))
    'RUN'
    """
    if subject.kind in (SubjectKind.RANK, SubjectKind.NODE, SubjectKind.GPU) and subject.node:
        return f"NODE:{subject.node}"
    return subject.key
