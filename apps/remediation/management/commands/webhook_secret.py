"""Print the secret with which a run's webhook is signed."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.common.errors import NotFound
from apps.remediation.launchers.webhook import webhook_secret
from apps.runs.launcher import launcher_usable
from apps.runs.selectors import run_by_code


class Command(BaseCommand):
    help = "Print the secret that signs the messages to a run's webhook: the one in its settings, else its own."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("run", help="the run's slug")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        try:
            run = run_by_code(options["run"])
        except NotFound as error:
            raise CommandError(str(error)) from error
        setting = launcher_usable(run.launcher)
        self.stdout.write((setting.secret if setting is not None else "") or webhook_secret(run.slug))
