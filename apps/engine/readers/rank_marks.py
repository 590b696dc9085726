"""Which lines of what many processes wrote together are one rank's: by the marks that PyTorch and torchrun put before them."""

import re
from collections.abc import Iterable

_MARKS = re.compile(
    r"(?:\d{1,7}: ?|\([^()\n]{1,60}\) )?"  # what srun --label or Ray puts before
    r"(?:\[default(?P<local>\d{1,7})\]: ?)?"
    r"(?:\[rank(?P<rank>\d{1,7})\]:)?"
)
"""The marks with which a line begins. PyTorch's own (`rank`) counts over the whole job, torchrun's (`default`, the role it
gives where none is named) within the machine."""


def lines_marked(lines: Iterable[str], *, rank: int, local_rank: int | None) -> list[str]:
    """Return those of some lines that are marked as one rank's, in their order and as they stand.

    lines: text, one line each, of many processes in whichever order. rank: the rank within the whole job.
    local_rank: its number within its machine, None where lines of several machines stand together, so that it says nothing.
    A line without a mark belongs to nobody, also below one that has a mark: between the two another process may have written.
    Cost: O(characters).
    Source: PyTorch 2.3 and later (`[rank3]:`), torchrun with `--tee` (`[default3]:`).

    >>> said = ["[default1]:  what():  CUDA error", "[rank3]: ValueError: 7", "[rank1]: KeyError: 'x'", "done"]
    >>> lines_marked(said, rank=1, local_rank=None), lines_marked(said, rank=1, local_rank=1)
    (["[rank1]: KeyError: 'x'"], ['[default1]:  what():  CUDA error', "[rank1]: KeyError: 'x'"])
    """
    return [line for line in lines if _is_of(line, rank, local_rank)]


def _is_of(line: str, rank: int, local_rank: int | None) -> bool:
    found = _MARKS.match(line)
    assert found is not None  # all of it may be missing
    if found["rank"] is not None:
        return int(found["rank"]) == rank
    return found["local"] is not None and local_rank is not None and int(found["local"]) == local_rank
