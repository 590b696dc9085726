"""Asking whether a report would be taken, instead of delivering it."""

from __future__ import annotations

import json
from typing import Any

from paceline.spool import Entry
from paceline.transport import Answer, Server


def taken_ask(server: Server, about: dict[str, Any], report: bytes) -> Answer:
    """Return what the server says of a report as it would be sent, `about` a run (`run`, `world_size`) or a `node`."""
    return server.request("POST", "check", {**about, "report": json.loads(report)})


def entry_ask(server: Server, entry: Entry) -> Answer:
    """Ask for a report of a run's ranks."""
    target = entry.target
    about: dict[str, Any] = {"run": target.name, "world_size": target.world_size}
    if target.run_fields.get("cluster"):
        about["cluster"] = target.run_fields["cluster"]
    return taken_ask(server, about, entry.body)
