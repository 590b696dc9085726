"""`python -m paceline.tail`: sends a log's new lines as they come, so that a kernel's words about a GPU count at once.

    python -m paceline.tail                                     the kernel's buffer (/dev/kmsg)
    python -m paceline.tail --kind training --run R train.log   a file, through rotation
    journalctl -kf -o short-iso-precise | python -m paceline.tail -

Its place in the log is kept beside the spool and moves on only when the server has taken the lines: a restart of either
side loses nothing. Lines that come twice are told apart by the server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from paceline.digest import name_of
from paceline.lines import KMSG, FileLines, KernelLines, PipeLines, Source
from paceline.program import until_told
from paceline.say import say_once
from paceline.settings import node_name, spool_dir, spool_folder, url_fault
from paceline.transport import Backoff, Server, Verdict, path

KINDS = ("kernel", "training", "health")
INTERVAL_S = 1.0
MAX_CHUNK = 256 * 1024


@dataclass(frozen=True)
class TailSettings:
    """What the tailer was told."""

    url: str
    token: str
    address: str
    log: str
    kind: str
    run: str | None
    zone: str | None
    from_start: bool
    folder: str

    @property
    def door(self) -> str:
        query = {"kind": self.kind, "live": "1", "run": self.run, "zone": self.zone}
        return f"{path('nodes', self.address, 'logs')}?{urlencode({k: v for k, v in query.items() if v})}"

    @property
    def place_file(self) -> str:
        return os.path.join(self.folder, f"{name_of(os.path.abspath(self.log), self.kind, self.address)}.tail")


def settings_read(arguments: Sequence[str], environ: Mapping[str, str]) -> TailSettings | str:
    """Return what the command line and the environment say, or a sentence about what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m paceline.tail", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="?", default=KMSG, help=f"a file, - for standard input (default {KMSG})")
    parser.add_argument("--kind", choices=KINDS, default="kernel")
    parser.add_argument("--run", help="the run a training log belongs to (PACELINE_RUN)")
    parser.add_argument("--zone", help="the time zone of stamps that name none, such as Europe/Zurich")
    parser.add_argument("--from-start", action="store_true", help="send what a file holds already, too")
    given = parser.parse_args(arguments)
    url = environ.get("PACELINE_URL", "").strip().rstrip("/")
    if not url:
        return "PACELINE_URL is not set: nobody to report to"
    if fault := url_fault(url):
        return fault
    cluster, node = environ.get("PACELINE_CLUSTER"), node_name(environ)
    return TailSettings(
        url=url,
        token=environ.get("PACELINE_TOKEN", "").strip(),
        address=f"{cluster}:{node}" if cluster else node,
        log=given.log,
        kind=given.kind,
        run=given.run or (environ.get("PACELINE_RUN") if given.kind == "training" else None) or None,
        zone=given.zone,
        from_start=given.from_start,
        folder=spool_folder(spool_dir(environ), url),
    )


def source_open(settings: TailSettings) -> Source:
    """Return the lines to follow, from where they were left; raise OSError if they can't be read."""
    place = place_recall(settings.place_file)
    if settings.log == "-":
        return PipeLines()
    if settings.log == KMSG:
        return KernelLines(place, path=KMSG)
    return FileLines(settings.log, place, from_start=settings.from_start)


class Tail:
    """Sends lines chunk by chunk; a chunk stays until the server has decided about it."""

    def __init__(self, settings: TailSettings, source: Source) -> None:
        self._settings = settings
        self._source = source
        self._server = Server(settings.url, settings.token)
        self._backoff = Backoff()
        self._chunk = b""
        self._remembered: dict[str, Any] | None = None

    def turn(self, now: float) -> bool:
        """Read and send once; return True if there may be more to send at once."""
        if self._backoff.open(now):
            return False
        self._chunk = self._chunk or self._source.read(MAX_CHUNK)
        if not self._chunk:
            self._remember()
            return False
        answer = self._server.request(
            "POST", self._settings.door, self._chunk, content_type="text/plain; charset=utf-8"
        )
        if answer.verdict in (Verdict.AGAIN, Verdict.DENIED, Verdict.NOT_YET):
            if answer.verdict is Verdict.DENIED:
                say_once(
                    "token",
                    f"the server does not accept the token ({answer.status}): {answer.message.rstrip('.')}; lines wait",
                )
            self._backoff.failed(now, retry_after_s=answer.retry_after_s)
            return False
        if answer.verdict is Verdict.NEVER:
            say_once("lines", f"the server refuses lines of {self._settings.log} ({answer.status}): {answer.message}")
        self._backoff.worked()
        self._chunk = b""
        self._remember()
        return True

    def _remember(self) -> None:
        place = self._source.place()
        if place != self._remembered:
            place_remember(self._settings.place_file, place)
            self._remembered = place

    @property
    def done(self) -> bool:
        return self._source.ended() and not self._chunk


def run(settings: TailSettings, *, wait: Callable[[float], bool]) -> int:
    """Follow the log until it ends or `wait(seconds)` returns True; return the exit status."""
    try:
        source = source_open(settings)
    except OSError as error:
        print(f"paceline: {settings.log} can't be read: {error}", file=sys.stderr)
        return 2
    tail = Tail(settings, source)
    while not tail.done:
        more = tail.turn(monotonic())
        if wait(0.0 if more else INTERVAL_S):
            break
    return 0


def place_recall(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="utf-8") as held:
            found = json.load(held)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def place_remember(file: str, place: dict[str, Any]) -> None:
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        with open(f"{file}.part", "w", encoding="utf-8") as held:
            json.dump(place, held)
        os.replace(f"{file}.part", file)
    except OSError as error:
        say_once("place", f"the place in the log can't be kept ({error}); after a restart lines are sent again")


def main(arguments: Sequence[str] | None = None) -> int:
    settings = settings_read(sys.argv[1:] if arguments is None else arguments, os.environ)
    return until_told(settings, lambda told, wait: run(told, wait=wait))


if __name__ == "__main__":
    sys.exit(main())
