"""`python -m paceline.node`: reports a machine's GPUs and its own gauges; one per node, beside the jobs.

It also delivers what the ranks' senders of this user left on disk when they died.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

from paceline.courier import Courier
from paceline.digest import fresh_name
from paceline.drops import Drops
from paceline.gpus import NvidiaSmi
from paceline.host import Host
from paceline.packing import utc_text
from paceline.program import until_told
from paceline.settings import node_name, spool_dir, spool_folder, spool_max_bytes, url_fault
from paceline.spool import Entry, Spool, Target
from paceline.transport import Server

INTERVAL_S = 15.0
"""The width of a column of node gauges on the server."""
AT_STOP_S = 2.0


@dataclass(frozen=True)
class NodeSettings:
    """What the node's sender was told."""

    url: str
    token: str
    node: str
    cluster: str | None
    interval_s: float
    gpus_json: str | None
    folder: str
    spool_max_bytes: int

    @property
    def address(self) -> str:
        return f"{self.cluster}:{self.node}" if self.cluster else self.node


class NodeReports:
    """Numbers and closes a node's reports."""

    def __init__(self, settings: NodeSettings, drops: Drops, *, boot: str) -> None:
        self._settings = settings
        self._drops = drops
        self._boot = boot
        self._seq = 0
        self._host = Host()
        self._smi = NvidiaSmi()

    def close(self) -> Entry:
        """Measure now and return the report."""
        at = time()
        host = self._host.read(monotonic())
        gpus = self._gpus()
        if gpus is not None:
            host["gpu_count"] = len(gpus)
        self._seq += 1
        body: dict[str, Any] = {
            "sender": self._settings.node,
            "boot": self._boot,
            "seq": self._seq,
            "sent_at": utc_text(time()),
            "at": utc_text(at),
            "host": host,
        }
        if gpus is not None:
            body["gpus"] = gpus
        drops = self._drops.counts()
        if drops:
            body["drops"] = drops
        target = Target("node", self._settings.address)
        return Entry(target, self._boot, self._seq, "reports", json.dumps(body, separators=(",", ":")).encode())

    def _gpus(self) -> list[dict[str, Any]] | None:
        if self._settings.gpus_json is None:
            return self._smi.read()
        try:
            with open(self._settings.gpus_json, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return None  # not written yet: no reading, which is not the same as no GPU
        return [gpu for gpu in found if isinstance(gpu, dict)] if isinstance(found, list) else None


def run(settings: NodeSettings, *, wait: Callable[[float], bool], once: bool = False) -> int:
    """Report until `wait(seconds)` returns True; return the exit status."""
    boot, drops = fresh_name(32), Drops()
    spool = Spool(settings.folder, max_bytes=settings.spool_max_bytes)
    server = Server(settings.url, settings.token)
    courier = Courier(server, spool, boot=boot, drops=drops, interval_s=settings.interval_s)
    reports = NodeReports(settings, drops, boot=boot)
    courier.start()
    due = monotonic()
    while True:
        courier.post(reports.close())
        due = max(due + settings.interval_s, monotonic())
        if once or wait(due - monotonic()):
            break
    courier.stop(AT_STOP_S)
    return 0 if courier.delivered or not once else 1


def settings_read(arguments: Sequence[str], environ: Mapping[str, str]) -> NodeSettings | str:
    """Return what the command line and the environment say, or a sentence about what is missing."""
    parser = argparse.ArgumentParser(prog="python -m paceline.node", description=__doc__)
    parser.add_argument("--interval", type=float, help=f"seconds between reports ({INTERVAL_S:g})")
    parser.add_argument(
        "--gpus-json", help="read the list of GPUs from this file: for sites with a collector of their own"
    )
    given = parser.parse_args(arguments)
    url = environ.get("PACELINE_URL", "").strip().rstrip("/")
    if not url:
        return "PACELINE_URL is not set: nobody to report to"
    if fault := url_fault(url):
        return fault
    try:
        interval_s = given.interval or float(environ.get("PACELINE_NODE_INTERVAL_S") or INTERVAL_S)
    except ValueError:
        return f"PACELINE_NODE_INTERVAL_S is {environ['PACELINE_NODE_INTERVAL_S']!r}, which is no number of seconds"
    return NodeSettings(
        url=url,
        token=environ.get("PACELINE_TOKEN", "").strip(),
        node=node_name(environ),
        cluster=environ.get("PACELINE_CLUSTER") or None,
        interval_s=max(interval_s, 0.1),
        gpus_json=given.gpus_json,
        folder=spool_folder(spool_dir(environ), url),
        spool_max_bytes=spool_max_bytes(environ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    settings = settings_read(sys.argv[1:] if arguments is None else arguments, os.environ)
    return until_told(settings, lambda told, wait: run(told, wait=wait))


if __name__ == "__main__":
    sys.exit(main())
