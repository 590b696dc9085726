"""Python stacks that ranks sent of themselves: where the training thread stands, and who stands alike."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

HEAD = re.compile(r"\Ain (?P<phase>\w+) for \d+ s, last step (?P<step>-?\d+)\s*$", re.MULTILINE)
"""The client's first line: it tells which stand of the rank the stack is of."""
THREAD = re.compile(r"^thread .*$", re.MULTILINE)
FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>.+?)\s*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call; its line is for people and no part of what makes two stacks alike: a loop moves from line to line."""

    file: str
    name: str
    line: int

    @property
    def key(self) -> tuple[str, str]:
        """What makes two frames the same."""
        return self.file, self.name

    @property
    def words(self) -> str:
        """The frame for a sentence.

        >>> Frame("/srv/app/ring.py", "_wait", 131).words
        '_wait (ring.py:131)'
        """
        return f"{self.name} ({PurePath(self.file).name}:{self.line})"


@dataclass(frozen=True, slots=True)
class StackRead:
    """A stack as read: the training thread's frames, outermost first, and the step it was in; None = it does not say."""

    step: int | None
    frames: tuple[Frame, ...]

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What makes two stacks alike: the same functions calling each other."""
        return tuple(frame.key for frame in self.frames)


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Ranks that stand alike, and the stack of the first of them."""

    ranks: tuple[int, ...]
    stack: StackRead


def stack_read(text: str) -> StackRead:
    """Return what a rank's text of its stacks says of its training thread, which is the first one in it.

    Cost: O(len(text)). Source: ours; the text is the client's (`paceline.stacks`), its frames are those of `traceback`.

    >>> text = 'in communication for 5 s, last step 290\\nthread MainThread\\n  File "/a/ring.py", line 7, in _wait\\n    poll()\\n'
    >>> stack_read(text).step, stack_read(text).frames[0].words
    (290, '_wait (ring.py:7)')
    >>> stack_read("no stack at all")
    StackRead(step=None, frames=())
    """
    head = HEAD.search(text)
    threads = [match.start() for match in THREAD.finditer(text)]
    mine = text[threads[0] : threads[1] if len(threads) > 1 else None] if threads else text
    frames = tuple(Frame(match["file"], match["name"], int(match["line"])) for match in FRAME.finditer(mine))
    return StackRead(int(head["step"]) if head else None, frames)


def stacks_grouped(stacks: Mapping[int, StackRead]) -> list[StackGroup]:
    """Return the groups of ranks whose stacks are alike, the smallest first: what stands out is read first.

    Cost: O(n · frames).

    >>> a, b = (StackRead(1, (Frame("x.py", name, 1),)) for name in "ab")
    >>> [group.ranks for group in stacks_grouped({0: a, 1: b, 2: a})]
    [(1,), (0, 2)]
    """
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank in sorted(stacks):
        groups.setdefault(stacks[rank].key, []).append(rank)
    made = [StackGroup(tuple(ranks), stacks[ranks[0]]) for ranks in groups.values()]
    return sorted(made, key=lambda group: (len(group.ranks), group.ranks))


def parting(one: StackRead, other: StackRead) -> Frame | None:
    """Return the first frame of `one` that is not of `other` too, None where `one` goes no way of its own.

    >>> step, wait = Frame("rank.py", "_step", 1), Frame("ring.py", "_wait", 2)
    >>> parting(StackRead(1, (step, wait)), StackRead(1, (step,))).name, parting(StackRead(1, (step,)), StackRead(1, (step, wait)))
    ('_wait', None)
    """
    for place, frame in enumerate(one.frames):
        if place >= len(other.frames) or other.frames[place].key != frame.key:
            return frame
    return None
