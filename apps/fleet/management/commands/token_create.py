"""Make an API token."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.services import token_create
from apps.common.access import SCOPES
from apps.common.clock import now
from apps.common.errors import PacelineError
from apps.fleet.services import cluster_ensure
from apps.journal.choices import Source


class Command(BaseCommand):
    help = "Make an API token and print it alone; it is shown this once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", required=True, help="what uses it")
        parser.add_argument(
            "--scope", required=True, action="append", choices=SCOPES, help="may be given several times"
        )
        parser.add_argument("--cluster", help="bind it to one cluster")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        moment = now()
        try:
            cluster_id = cluster_ensure(name=options["cluster"], now=moment) if options["cluster"] else None
            _, secret = token_create(
                name=options["name"],
                scopes=options["scope"],
                cluster_id=cluster_id,
                by="command line",
                source=Source.COMMAND,
                now=moment,
            )
        except PacelineError as error:
            raise CommandError(error.message) from error
        self.stdout.write(secret)
