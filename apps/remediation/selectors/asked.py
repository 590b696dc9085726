"""What a job asks Slurm for: how many nodes, of which partitions. What nobody said stays unknown."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from apps.engine.readers.slurm import names_apart, nodes_least
from apps.remediation.selectors.schedulers import JobRow
from apps.remediation.selectors.slurm import QueuedJob, submits
from apps.runs.launcher import LauncherSetting

_DIRECTIVE = re.compile(r"#SBATCH\s+(.*)")
_NODES, _PARTITION = ("--nodes", "-N"), ("--partition", "-p")


@dataclass(frozen=True, slots=True)
class Asked:
    """The least number of nodes with which a job would begin, None where that is not known, and where it may run."""

    nodes: int | None = None
    partitions: tuple[str, ...] = ()


def asked_of(setting: LauncherSetting, job: JobRow | None, queued: QueuedJob | None) -> Asked:
    """Return what the next start of a run asks for: a submission by its own words, somebody's job as Slurm told of it.

    job: the run's newest one. A submission that names no partition goes where the one before it went.
    """
    known = Asked(job.nodes_asked, job.partitions) if job is not None else Asked()
    if not submits(setting) or (queued is not None and queued.releases):
        return known
    said = asked_in(setting)
    return Asked(said.nodes, said.partitions or known.partitions)


def asked_in(setting: LauncherSetting) -> Asked:
    """Return what a launcher's own words ask sbatch for: those of its command go before its environment, that before its script."""
    words, directives = _options(setting.command), list(_directives(setting.script))
    nodes = _last(words, _NODES) or _last(directives, _NODES)
    partitions = (
        _last(words, _PARTITION) or setting.environment.get("SBATCH_PARTITION", "") or _last(directives, _PARTITION)
    )
    return Asked(nodes_least(nodes), names_apart(partitions))


def _options(command: Sequence[str]) -> list[str]:
    """Return sbatch's own options of a command: its words up to the program."""
    program = next((place for place, word in enumerate(command) if not word.startswith("-")), None)
    return list(command[:program])


def _directives(script: str) -> Iterator[str]:
    """Return the words of a script's `#SBATCH` lines; sbatch reads them up to the first line that is a command."""
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            return
        if found := _DIRECTIVE.match(line):
            try:
                yield from shlex.split(found[1], comments=True)
            except ValueError:
                yield from found[1].split()


def _last(words: Iterable[str], names: tuple[str, str]) -> str:
    """Return the value of an option, the last one that is given: `--nodes=4`, `--nodes 4`, `-N 4`, `-N4`."""
    long, short = names
    value, takes = "", False
    for word in words:
        if takes:
            value, takes = word, False
        elif word in names:
            takes = True
        elif word.startswith(f"{long}="):
            value = word.partition("=")[2]
        elif word.startswith(short) and not word.startswith("--"):
            value = word[len(short) :].removeprefix("=")
    return value
