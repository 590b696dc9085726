"""Open the first account of an installation and print its one-time link."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from apps.accounts.choices import Role
from apps.accounts.selectors import people_all
from apps.accounts.services import sign_in_link_create, user_create
from apps.common.clock import now
from apps.journal.choices import Source


class Command(BaseCommand):
    help = "Make the first account (an admin) if there is none and print a link that signs it in once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", default="operator")
        parser.add_argument("--email", default="operator@localhost", help="where notices go")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        moment = now()
        admins = [person for person in people_all() if person.role == Role.ADMIN and person.is_active]
        if admins:
            user_id = next((person.id for person in admins if person.name == options["name"]), admins[0].id)
        else:
            user_id = user_create(
                name=options["name"],
                role=Role.ADMIN,
                email=options["email"],
                by="first start",
                source=Source.COMMAND,
                now=moment,
            )
        secret = sign_in_link_create(user_id=user_id, now=moment)
        self.stdout.write(f"{settings.PUBLIC_URL}/first/{secret}")
