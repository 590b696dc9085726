"""A supervisor over shell one-liners, run as a process of its own by the tests: `keeper.py LOGS NAME:TIER:COMMAND…`."""

import signal
import sys
from pathlib import Path

from apps.config.local.programs import Program
from apps.config.local.supervisor import Backoff, Supervisor
from apps.config.local.voice import Voice
from apps.config.local.watch import StopAsked, Watch, adopt_orphans


def main(logs: Path, programs: list[str]) -> None:
    voice = Voice()
    with Watch().installed() as watch:
        adopt_orphans()
        supervisor = Supervisor(watch=watch, voice=voice, logs=logs, backoff=Backoff(first_s=0.05, limit_s=0.2))
        try:
            for text in programs:
                name, tier, command = text.split(":", 2)
                child = supervisor.add(
                    Program(
                        name=name,
                        command=("sh", "-c", command),
                        log=logs / f"{name}.log",
                        folder=logs,
                        stop_signal=signal.SIGTERM,
                        stop_grace_s=1.0,
                        tier=int(tier),
                    )
                )
                supervisor.await_ready(child, limit_s=5.0)
                voice.say(name, f"pid {child.process.pid if child.process else 0}")
            supervisor.serve()
        except StopAsked:
            pass
        finally:
            supervisor.stop()
        voice.say("keeper", "done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
