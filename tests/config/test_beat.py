"""The clock knows the schedule and nothing else."""

import subprocess
import sys

from apps.config.pipeline import SWEEPS

PRINT = (
    "import sys; from apps.config.beat import app; print(sorted(app.conf.beat_schedule)); "
    "print({name: row['options']['queue'] for name, row in sorted(app.conf.beat_schedule.items())}); "
    "print('django.apps' in sys.modules, app.conf.broker_url)"
)


class TestBeat:
    def test_schedules_every_sweep_without_loading_django(self) -> None:
        done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True)
        names, queues, loaded = done.stdout.splitlines()

        assert names == str(sorted(SWEEPS))
        assert queues == str({name: queue for name, (queue, _) in sorted(SWEEPS.items())})
        assert loaded.startswith("False redis")
