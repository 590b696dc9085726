"""Read a CSV of step × rank into an attempt that has ended."""

import hashlib
import re
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np
from django.core.management.base import BaseCommand, CommandError, CommandParser
from numpy.typing import NDArray

from apps.common.clock import now
from apps.common.errors import BadRequest, PacelineError
from apps.common.ids import id_write
from apps.engine.readers.step_csv import MOST_RANKS, StepTable, step_csv_read
from apps.journal.choices import Source
from apps.runs.choices import EndReason
from apps.telemetry.services.importing import Imported, Placed, attempt_import
from apps.telemetry.services.parallel import ORDER, coords_of, layout_parse, order_parse, stages_by_rule

Ranks = NDArray[np.int64]


class Command(BaseCommand):
    help = (
        "Read a CSV of seconds per step and rank (header: step, then rank numbers; a line per step) into a new attempt "
        "that has ended. The same file is taken once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the CSV")
        parser.add_argument("--run", help="the run's slug; default: from the file's name")
        parser.add_argument("--cluster", default="imported", help="where its nodes go (default: imported)")
        parser.add_argument("--metric", default="compute_s", help="what the numbers are (default: compute_s)")
        parser.add_argument("--ranks-per-node", type=int, default=8, help="ranks on one node (default: 8)")
        parser.add_argument("--node-prefix", help="nodes are called this and a number (default: the run's slug and -n)")
        parser.add_argument("--layout", default="", help="sizes such as tp=4,dp=4,pp=4: gives world size and stages")
        parser.add_argument(
            "--order", default="-".join(ORDER), help="which coordinate is fastest (default: tp-cp-dp-pp)"
        )
        parser.add_argument("--stages", default="", help="a file of rank,stage lines, or a rule such as “rank // 16”")
        parser.add_argument(
            "--world-size", type=int, help="how many ranks there were (default: by layout, else by file)"
        )
        parser.add_argument(
            "--sampled",
            action="store_true",
            help="a sample: number its steps and ranks one after the other, without holes",
        )
        parser.add_argument("--step-s", type=float, help="how long a step took (default: as long as its slowest rank)")
        parser.add_argument("--reason", default=EndReason.FINISHED, choices=EndReason.values, help="how it ended")
        parser.add_argument("--again", action="store_true", help="take a file that was taken before once more")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        began = time.perf_counter()
        path = Path(options["file"])
        try:
            content = path.read_bytes()
            table = step_csv_read(content.decode("utf-8", "replace").splitlines())
            read_s = time.perf_counter() - began
            done = self._import(path, content, table, options)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror or error}") from error
        except PacelineError as error:
            raise CommandError(str(error)) from error
        self._tell(table, done, read_s=read_s, all_s=time.perf_counter() - began)

    def _import(self, path: Path, content: bytes, table: StepTable, options: dict[str, Any]) -> Imported:
        run = options["run"] or _slug(path.stem)
        sizes = layout_parse(options["layout"]) if options["layout"] else {}
        key = f"import:{hashlib.sha256(content).hexdigest()[:32]}"
        if options["again"]:
            key += f"/{secrets.token_hex(8)}"
        return attempt_import(
            run=run,
            cluster=options["cluster"],
            key=key,
            metric=options["metric"],
            steps=np.arange(len(table.steps)) if options["sampled"] else table.steps,
            values=table.values,
            placed=_placed(table, sizes, run, options),
            step_s=options["step_s"],
            layout=sizes,
            reason=options["reason"],
            by="command line",
            source=Source.COMMAND,
            now=now(),
        )

    def _tell(self, table: StepTable, done: Imported, *, read_s: float, all_s: float) -> None:
        attempt = id_write("att", done.attempt_id)
        self.stdout.write(
            f"{done.run}: attempt {attempt}, {done.steps:,} steps × {done.ranks:,} ranks, {done.values:,} values"
        )
        self.stdout.write(
            f"{done.steps / all_s:,.0f} rows/s, {done.values / all_s:,.0f} values/s; {read_s:.2f} of {all_s:.2f} s for reading the file"
        )
        if table.repeated:
            self.stdout.write(f"{table.repeated:,} lines came again; the last one counted")
        if table.not_understood:
            samples = "; ".join(f"line {sample.line}: {sample.why}" for sample in table.samples)
            self.stdout.write(f"{table.not_understood:,} lines were not understood ({samples})")
        if done.refused:
            self.stdout.write(f"{done.refused:,} values cannot be and were left out")


def _placed(table: StepTable, sizes: dict[str, int], run: str, options: dict[str, Any]) -> Placed:
    ranks = table.ranks.astype(np.int64)
    least = int(ranks.max()) + 1
    by_layout = int(np.prod(list(sizes.values()), dtype=np.int64)) if sizes else 0
    if by_layout and by_layout < least:
        raise BadRequest(f"layout: it has {by_layout} ranks, and the file has rank {least - 1}.")
    world = options["world_size"] or max(by_layout, least)
    if not least <= world <= MOST_RANKS:
        raise BadRequest(f"world-size: the file has rank {least - 1}, and there are at most {MOST_RANKS}.")
    if options["ranks_per_node"] < 1:
        raise BadRequest("ranks-per-node: at least 1.")
    # A trace may hold one rank of each tensor group only: the others have a place, too, and no values.
    every = np.arange(min(world, by_layout or world), dtype=np.int64)
    order = order_parse(options["order"])
    coords = coords_of(every, sizes, order) if sizes else []
    stages = np.array([where.get("pp", 0) for where in coords], np.int64) if coords else np.zeros(len(every), np.int64)
    if options["stages"]:
        every, stages = _stages(options["stages"], ranks, every)
        coords = [coords[rank] for rank in every.tolist()] if coords else []
    prefix = options["node_prefix"] or f"{run}-n"
    if options["sampled"]:
        rows = np.searchsorted(every, ranks)
        mine, numbers = [coords[row] for row in rows.tolist()] if coords else [], np.arange(len(ranks))
        return Placed(numbers, len(ranks), options["ranks_per_node"], prefix, numbers, ranks, stages[rows], mine)
    return Placed(ranks, world, options["ranks_per_node"], prefix, every, every, stages, coords)


def _stages(given: str, ranks: Ranks, every: Ranks) -> tuple[Ranks, Ranks]:
    """The ranks whose stage is told, and their stages."""
    path = Path(given)
    if not path.is_file():
        return every, stages_by_rule(given, every)
    told: dict[int, int] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        found = re.fullmatch(r"\s*(\d{1,9})\s*[,;\t ]\s*(\d{1,6})\s*", line)
        if found:
            told[int(found[1])] = int(found[2])
    missing = [rank for rank in ranks.tolist() if rank not in told]
    if missing:
        raise BadRequest(f"stages: the file says nothing about rank {missing[0]} and {len(missing) - 1} others.")
    known = np.array([rank for rank in every.tolist() if rank in told], np.int64)
    return known, np.array([told[rank] for rank in known.tolist()], np.int64)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63] or "imported"
