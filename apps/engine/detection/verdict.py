"""What a detector answers: a verdict, "not enough evidence", or "nothing found"."""

from collections.abc import Sequence
from dataclasses import dataclass

from apps.engine.detection.words import Certainty, Class, CloseReason, Level, ProposalKind, SubjectKind


@dataclass(frozen=True, slots=True)
class Subject:
    """What a verdict is about; fields that do not apply are None.

    >>> Subject(SubjectKind.RANK, rank=56, node="node-0007").key
    'RANK:56'
    """

    kind: SubjectKind
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    pci: str | None = None
    stage: int | None = None
    nodes: tuple[str, ...] = ()
    place: str | None = None

    @property
    def key(self) -> str:
        """The subject's identity inside an attempt; with the cause it says which verdict the next window updates."""
        named = {
            SubjectKind.RANK: str(self.rank),
            SubjectKind.NODE: self.node,
            SubjectKind.GPU: f"{self.node}/{self.gpu or self.pci}",
            SubjectKind.STAGE: str(self.stage),
            SubjectKind.LINK: "+".join(sorted(self.nodes)),
            SubjectKind.RUN: None,
        }.get(self.kind, self.place)
        return f"{self.kind}:{named}" if named is not None else str(self.kind)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A number (or word) a verdict rests on, its unit ("" for a count, ratio or word), and what it is held against."""

    name: str
    value: float | int | str
    unit: str = ""
    reference: float | int | str | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of those that could have been looked at were."""

    have: int
    of: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the detector would have done; `node` for EXCLUDE_NODE."""

    kind: ProposalKind = ProposalKind.NONE
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells that gave the verdict, for "show the cells"; steps are bounded by the detector."""

    metric: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something is wrong, or (with `closed`) no longer.

    `victims`: ranks that suffer from it. `score`: a number whose meaning stands in `score_meaning`. `since_step`: the
    first step it touched; `found_step`: the newest step known when it was reached. `began_at`: seconds since 1970 UTC
    on the receiver's clock. `verdict`, `why`, `next`: sentences for people. `cost_s`: seconds it adds to each step,
    None = not measured.
    """

    cause: str
    class_: Class
    level: Level
    certainty: Certainty
    subject: Subject
    score: float
    score_meaning: str
    verdict: str
    why: str
    next: str
    coverage: Coverage
    since_step: int | None = None
    found_step: int | None = None
    began_at: float | None = None
    victims: tuple[int, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    proposal: Proposal = Proposal()
    cells: tuple[Cells, ...] = ()
    cost_s: float | None = None
    closed: CloseReason | None = None

    @property
    def identity(self) -> tuple[str, str]:
        """(cause, subject): while a verdict of the same identity is open, a new one updates it."""
        return self.cause, self.subject.key


@dataclass(frozen=True, slots=True)
class Undecided:
    """Not enough evidence: what there is, what is lacking, and a sentence that says so."""

    cause: str
    have: tuple[str, ...]
    lack: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Healthy:
    """Enough evidence, and nothing found in it."""

    cause: str
    have: tuple[str, ...]
    sentence: str


Answer = Verdict | Undecided | Healthy


def verdicts_in(answers: Sequence[Answer]) -> tuple[Verdict, ...]:
    """Return the verdicts among the answers, in their order."""
    return tuple(answer for answer in answers if isinstance(answer, Verdict))


def ranks_in_words(ranks: Sequence[int], *, most: int = 6) -> str:
    """Return a short list for a sentence.

    >>> ranks_in_words([3]), ranks_in_words([1, 2, 9]), ranks_in_words(range(64), most=3)
    ('rank 3', 'ranks 1, 2 and 9', 'ranks 0, 1, 2 and 61 more')
    """
    names = [str(rank) for rank in ranks]
    if len(names) == 1:
        return f"rank {names[0]}"
    if len(names) > most:
        return f"ranks {', '.join(names[:most])} and {len(names) - most} more"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}" if names else "no rank"
