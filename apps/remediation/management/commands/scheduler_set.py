"""Say which scheduler runs a cluster."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.common.access import SYSTEM
from apps.common.clock import now
from apps.common.errors import PacelineError
from apps.fleet.selectors import cluster_by_name
from apps.journal.choices import Source
from apps.remediation.services import SchedulerFields, scheduler_set


class Command(BaseCommand):
    help = "Say which scheduler runs a cluster: where its programs and its configuration are, and what Paceline may do."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("cluster")
        parser.add_argument("--conf", default="", help="path of slurm.conf; without it, where Slurm itself looks")
        parser.add_argument("--programs", default="", help="folder of scontrol and sbatch; without it, the usual ones")
        parser.add_argument(
            "--zone",
            default="UTC",
            help="of times without an offset in listings that are pushed; its programs are asked in UTC",
        )
        parser.add_argument("--poll-s", type=float, default=5.0, help="seconds between two reads")
        parser.add_argument("--no-drains", action="store_true", help="excluding a node does not drain it there")
        parser.add_argument("--none", action="store_true", help="take it away")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002
        fields = SchedulerFields(
            conf=options["conf"],
            programs=options["programs"],
            zone=options["zone"],
            poll_s=options["poll_s"],
            drains=not options["no_drains"],
        )
        try:
            cluster = cluster_by_name(options["cluster"])
            row = scheduler_set(
                principal=SYSTEM,
                cluster_id=cluster.id,
                fields=None if options["none"] else fields,
                source=Source.COMMAND,
                now=now(),
            )
        except PacelineError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{cluster.name}: {row.kind if row is not None else 'no scheduler'}")
