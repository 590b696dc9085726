"""Start, stop, look at and trouble the practice run."""

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.common.access import SYSTEM
from apps.common.clock import now
from apps.common.errors import PacelineError
from apps.journal.choices import Source
from apps.rehearsal.selectors import FaultRow, PracticeRow, practice_read
from apps.rehearsal.services import fault_set, faults_clear, practice_start, practice_stop
from apps.rehearsal.trainer.faults import KINDS
from apps.remediation.choices import OPEN, ActionState
from apps.remediation.selectors.actions import action_by_id

BY = "command line"
START_WAIT_S = 60.0
"""Workers may just be starting themselves."""
STOP_WAIT_S = 15.0
"""Whoever stops Paceline does not wait longer."""
POLL_S = 0.1


class Command(BaseCommand):
    help = "Start, stop, look at and trouble the practice run: real training processes on this machine."

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--start", action="store_true", help="start it, if it does not run, and wait until it does")
        what.add_argument("--stop", action="store_true", help="stop it and wait until it is gone")
        what.add_argument("--status", action="store_true", help="say what runs and which faults are set")
        what.add_argument("--fault", choices=list(KINDS), help="set a fault")
        what.add_argument("--clear", nargs="?", const="", metavar="ID", help="take one fault away, or all")
        parser.add_argument("--ranks", type=int, help="with --start: ranks in all (default 16)")
        parser.add_argument("--nodes", type=int, help="with --start: nodes to spread them over (default 4)")
        parser.add_argument("--rank", type=int, help="with --fault: the rank that fails")
        parser.add_argument("--node", help="with --fault: the node that fails")
        parser.add_argument("--value", type=float, help="with --fault: how much")
        parser.add_argument("--no-wait", action="store_true", help="with --start or --stop: only ask for it")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        try:
            self._do(options)
        except PacelineError as error:
            raise CommandError(str(error)) from error

    def _do(self, options: dict[str, Any]) -> None:
        if options["start"]:
            size = {"nodes": options["nodes"], "ranks": options["ranks"]}
            action = practice_start(principal=SYSTEM, source=Source.COMMAND, now=now(), **size)
            self._follow(action.id if action else None, wait=not options["no_wait"], running=True)
        elif options["stop"]:
            action = practice_stop(principal=SYSTEM, source=Source.COMMAND, now=now())
            self._follow(action.id if action else None, wait=not options["no_wait"], running=False)
        elif options["fault"]:
            target = {name: options[name] for name in ("rank", "node", "value")}
            row = fault_set(kind=options["fault"], **target, by=BY, source=Source.COMMAND, now=now())
            self.stdout.write(fault_words(row))
        elif options["clear"] is not None:
            gone = faults_clear(fault_id=options["clear"] or None, by=BY, source=Source.COMMAND, now=now())
            self.stdout.write(f"{gone} taken away")
        else:
            for line in status_lines(practice_read()):
                self.stdout.write(line)

    def _follow(self, action_id: int | None, *, wait: bool, running: bool) -> None:
        """Wait until the practice run runs, or is gone, and say so; an action that fails is said with its reason."""
        wait_s = START_WAIT_S if running else STOP_WAIT_S
        deadline = time.monotonic() + wait_s
        while wait and action_id is not None:
            action = action_by_id(action_id)
            if action.state not in (*OPEN, ActionState.SUCCEEDED):
                raise CommandError(f"{action.outcome or action.state} ({action.kind}, {action.state})")
            if practice_read().running is running and (running or action.state == ActionState.SUCCEEDED):
                break
            if time.monotonic() > deadline:
                raise CommandError(f"still waiting for it after {wait_s:g} s; the action goes on ({action.state})")
            time.sleep(POLL_S)
        self.stdout.write("practice run: " + ("runs" if running else "does not run"))


def status_lines(row: PracticeRow) -> list[str]:
    """Return what is to be said about the practice run, a line each."""
    if not row.running:
        return ["does not run"]
    step = "no step yet" if row.run.step is None else f"step {row.run.step}"
    lines = [f"runs: {len(row.ranks)} ranks on {', '.join(row.nodes)}, {step}, attempt {row.attempt_key}"]
    return lines + [fault_words(fault) for fault in row.faults]


def fault_words(row: FaultRow) -> str:
    """Return a fault as one line that begins with its id."""
    where = f"rank {row.rank} on {row.node}" if row.rank is not None else row.node or "everywhere"
    amount = f"  {row.value_words}" if row.value_words else ""
    return f"{row.id}  {row.kind}  {where}{amount}"
