"""Run Paceline: the same as `make run` on an installed checkout."""

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Start the servers, web, workers, beat and the practice run, and tend them until Ctrl-C."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        # In place of this process: the supervisor is to be small, and this one has loaded all of Django.
        os.execv(sys.executable, [sys.executable, "-m", "apps.config.local"])  # noqa: S606
