"""What the program was asked to do: by arguments what it is, by environment where and from which step it runs."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NODES = ("practice-01", "practice-02", "practice-03", "practice-04")


class OptionsRefused(Exception):
    """The program cannot run as asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """Everything the ranks must agree on."""

    directory: Path
    nodes: tuple[str, ...]
    ranks_per_node: int
    attempt: str
    resume_step: int | None
    steps: int
    step_s: float
    checkpoint_every: int
    keep: int
    seed: int
    collective_timeout_s: float
    grace_s: float
    lost_node_grace_s: float

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.nodes) * self.ranks_per_node


def options_read(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Return what is asked for.

    Raises: OptionsRefused when no node is left or a number makes no sense.
    """
    given = _parser().parse_args(arguments)
    named = _names(given.nodes or environ.get("PACELINE_NODES", "")) or NODES
    out = set(_names(environ.get("PACELINE_EXCLUDE_NODES", "")))
    nodes = tuple(name for name in named if name not in out)
    if not nodes:
        raise OptionsRefused("every node is excluded: there is nothing to run on")
    if min(given.ranks_per_node, given.checkpoint_every, given.keep) < 1 or given.step_s < 0:
        raise OptionsRefused("ranks per node, steps between checkpoints and checkpoints kept must be 1 or more")
    return Options(
        directory=Path(given.directory or os.getcwd()).resolve(),
        nodes=nodes,
        ranks_per_node=given.ranks_per_node,
        attempt=environ.get("PACELINE_ATTEMPT_KEY", "") or f"practice:{os.getpid()}",
        resume_step=_step(environ.get("PACELINE_RESUME_STEP", "")),
        steps=given.steps,
        step_s=given.step_s,
        checkpoint_every=given.checkpoint_every,
        keep=given.keep,
        seed=given.seed,
        collective_timeout_s=given.collective_timeout_s,
        grace_s=given.grace_s,
        lost_node_grace_s=given.lost_node_grace_s,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m apps.rehearsal.trainer", description=__doc__)
    add = parser.add_argument
    add("--directory", help="where checkpoints, faults and gauges live (default: the working directory)")
    add("--nodes", default="", help="names, comma separated (default: PACELINE_NODES)")
    add("--ranks-per-node", type=int, default=4)
    add("--steps", type=int, default=50_000, help="the step the run ends after")
    add("--step-s", type=float, default=0.5, help="how long a healthy step lasts")
    add("--checkpoint-every", type=int, default=20, help="steps between saves")
    add("--keep", type=int, default=5, help="checkpoints kept")
    add("--seed", type=int, default=1)
    add("--collective-timeout-s", type=float, default=600.0, help="how long a collective waits for a silent rank")
    add("--grace-s", type=float, default=3.0, help="how long the others live on after a rank died")
    add("--lost-node-grace-s", type=float, default=15.0, help="the same after a whole node died")
    return parser


def _names(text: str) -> tuple[str, ...]:
    """Return the names in `text`, separated by commas or blanks, without the cluster some spell before them."""
    return tuple(dict.fromkeys(name.rpartition(":")[2] for name in text.replace(",", " ").split()))


def _step(text: str) -> int | None:
    """Return the step to resume from; None where nobody asked for one."""
    try:
        return max(int(text), 0)
    except ValueError:
        return None
