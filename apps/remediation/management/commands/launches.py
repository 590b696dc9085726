"""List what Paceline launched and has not seen to end."""

from typing import Any

from django.core.management.base import BaseCommand

from apps.common.clock import now
from apps.remediation.launchers import launches_look
from apps.remediation.selectors import LaunchRow, launches_alive


class Command(BaseCommand):
    help = "List the programs that Paceline launched and that still run, one a line, oldest first."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--no-practice", action="store_true", help="leave the practice run out")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        launches_look(now=now())
        for row in launches_alive(practice=False if options["no_practice"] else None):
            self.stdout.write(launch_words(row))


def launch_words(row: LaunchRow) -> str:
    """Return a launch as one line."""
    where = f"pid {row.pid}" if row.pid else f"{row.launcher.lower()} {row.external_id}".rstrip()
    return f"{row.run}  {where}  since {row.started_at:%Y-%m-%d %H:%M} UTC"
