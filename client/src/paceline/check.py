"""`python -m paceline check`: proves from this machine, with these settings, that reports arrive."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import partial

from paceline.asking import taken_ask
from paceline.digest import fresh_name
from paceline.drops import Drops
from paceline.election import MeetingPlace
from paceline.hub import Hub
from paceline.node import NodeReports, NodeSettings
from paceline.recorder import Phase, Recorder, Step
from paceline.reporter import Hello, Reporter
from paceline.settings import Settings, key_words, settings_read
from paceline.spool import Spool
from paceline.transport import Answer, Server, Verdict

RUN = "paceline-check"
"""The name that is checked where the surroundings give no run; the server keeps nothing of a check."""
STEPS = 3
WITHIN_S = 10.0
SKEW_WORTH_SAYING_S = 1.0
FREE_MIB_WORTH_SAYING = 1024


@dataclass(frozen=True)
class Finding:
    """One line of the check."""

    ok: bool
    subject: str
    sentence: str


Say = Callable[[Finding], None]


def check(environ: Mapping[str, str], *, run: str | None = None, say: Say) -> bool:
    """Go through everything between this process and the server; return whether reports arrive."""
    run = run or environ.get("PACELINE_RUN", "").strip()
    key = f"check:{fresh_name()}"
    settings = settings_read({**environ, "PACELINE_ATTEMPT_KEY": key}, run=run or RUN, rank=0, world_size=1)
    if not isinstance(settings, Settings):
        say(Finding(False, "settings", settings.sentence or "PACELINE_URL is not set: nobody to report to"))
        return False
    settings = replace(settings, torchrun=False, external_id=None, interval_s=0.5, check=True)
    token = "a token is given" if settings.token else "no token is given (PACELINE_TOKEN)"
    say(Finding(True, "settings", f"{settings.url}, {_run_words(run)}, node {settings.node}, {token}"))
    found = [_key(environ, run or RUN), _meeting(settings), _spool(settings), _server(settings)]
    for finding in found:
        say(finding)
    if not found[-1].ok:
        return False
    last = [_node_report(settings), _rank_report(settings)]
    for finding in last:
        say(finding)
    return all(finding.ok for finding in (*found, *last))


def _run_words(run: str) -> str:
    return f"run {run}" if run else "no run is named (PACELINE_RUN), so start(run=...) must name it"


def _key(environ: Mapping[str, str], run: str) -> Finding:
    """Say under which key a training would report that is started in these surroundings, or that it would not."""
    found = settings_read(environ, run=run)
    if isinstance(found, Settings):
        return Finding(True, "attempt key", key_words(found, environ))
    return Finding(False, "attempt key", found.sentence or "")


def _meeting(settings: Settings) -> Finding:
    """Say whether ranks of this node can meet; where they can't, each sends for itself, which works as well."""
    place = MeetingPlace(
        settings.local_dir, url=settings.url, run=settings.run, node=settings.node, launch=settings.base_key
    )
    listener = place.claim(1) if place.open() else None
    caller = place.connect(1) if listener is not None else None
    for sock in (caller, listener):
        if sock is not None:
            sock.close()
    place.release(1)
    place.close()
    if caller is None:
        return Finding(
            True, "ranks", f"can't meet in {place.folder}, so each sends for itself; PACELINE_LOCAL_DIR helps"
        )
    return Finding(True, "ranks", f"of a node can meet in {settings.local_dir}")


def _spool(settings: Settings) -> Finding:
    spool = Spool(settings.spool_dir, max_bytes=settings.spool_max_bytes)
    mark = os.path.join(spool.folder, f"check-{os.getpid()}")
    try:
        os.makedirs(spool.folder, mode=0o700, exist_ok=True)
        with open(mark, "wb") as file:
            file.write(b"x" * 4096)
        os.unlink(mark)
        free_mib = shutil.disk_usage(spool.folder).free >> 20
    except OSError as error:
        return Finding(False, "spool", f"{spool.folder} can't be written: {error}")
    tight = "" if free_mib > FREE_MIB_WORTH_SAYING else ", which is little"
    return Finding(True, "spool", f"{spool.folder} can be written, {free_mib} MiB free{tight}")


def _server(settings: Settings) -> Finding:
    """Ask for something that needs no token: what counts is that the server speaks."""
    server = Server(settings.url, settings.token, timeout_s=WITHIN_S)
    began = time.monotonic()
    answer = server.request("GET", "schema")
    took_ms = 1000 * (time.monotonic() - began)
    server.close()
    if answer.status == 0:
        return Finding(False, "server", f"{settings.url} can't be reached: {answer.message}")
    skew_s = _skew_s(answer.date)
    clocks = ""
    if abs(skew_s) > SKEW_WORTH_SAYING_S:
        clocks = f"; this clock is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
    return Finding(True, "server", f"answers within {took_ms:.0f} ms{clocks}")


def _skew_s(date: str) -> float:
    """Return by how much this machine's clock is ahead of the server's; 0 if the server doesn't say its time."""
    try:
        return time.time() - parsedate_to_datetime(date).timestamp() if date else 0.0
    except (TypeError, ValueError):
        return 0.0


def _node_report(settings: Settings) -> Finding:
    """Send a real report of this machine."""
    address = f"{settings.cluster}:{settings.node}" if settings.cluster else settings.node
    node = NodeSettings(
        url=settings.url,
        token=settings.token,
        node=settings.node,
        cluster=settings.cluster,
        interval_s=settings.interval_s,
        gpus_json=None,
        folder=settings.spool_dir,
        spool_max_bytes=settings.spool_max_bytes,
    )
    entry = NodeReports(node, Drops(), boot=fresh_name(32)).close()
    server = Server(settings.url, settings.token, timeout_s=WITHIN_S)
    answer = taken_ask(server, {"node": address}, entry.body)
    server.close()
    if answer.verdict is not Verdict.DELIVERED:
        return Finding(False, "node report", _refused(answer))
    gpus = json.loads(entry.body).get("gpus")
    seen = f"{len(gpus)} GPUs" if gpus is not None else "no nvidia-smi"
    return Finding(True, "node report", f"would be taken for {settings.node} of {_cluster(answer)} ({seen})")


def _rank_report(settings: Settings) -> Finding:
    """Be a rank for three steps, by the way every rank goes: recorder, reporter, sender, spool, server."""
    with tempfile.TemporaryDirectory(prefix="paceline-check-") as folder:
        settings = replace(settings, spool_dir=f"{folder}/spool", local_dir=f"{folder}/local", launch=folder)
        recorder = Recorder()
        fields = {"cluster": settings.cluster} if settings.cluster else {}
        reporter = Reporter(settings, recorder, Hello(run_fields=fields), find_key=lambda: None)
        reporter.start()
        began = time.monotonic()
        step, phase = Step(recorder), Phase(recorder, "compute", recorder.slots["compute_s"])
        for number in range(STEPS):
            step.number = number
            with step, phase:
                pass
        if not _until(lambda: reporter.hub is not None, WITHIN_S) or (hub := reporter.hub) is None:
            return Finding(False, "rank report", f"nobody became the sender within {WITHIN_S:.0f} s")
        _until(partial(_decided, hub), WITHIN_S)
        reporter.finish({"finished": True}, WITHIN_S)  # an attempt that is never opened has no end
        took_s = time.monotonic() - began
        answer = hub.courier.last_answer or Answer(0, message="nothing was sent")
        left, lost = hub.courier.waiting, hub.drops.counts()
    if left or lost or not hub.courier.delivered:
        return Finding(False, "rank report", f"{left} reports wait, lost: {lost or 'none'}; {_refused(answer)}")
    if hub.courier.refused:
        return Finding(False, "rank report", f"taken, but parts of it could not be used: {hub.courier.refused}")
    return Finding(
        True,
        "rank report",
        f"{STEPS} steps of {settings.run} would be taken for {_cluster(answer)} ({took_s:.1f} s); nothing of it was kept",
    )


def _cluster(answer: Answer) -> str:
    return f"cluster {answer.body.get('cluster', 'unknown')}"


def _decided(hub: Hub) -> bool:
    """True once a report was taken, or it is clear that none will be."""
    answer = hub.courier.last_answer
    return hub.courier.delivered > 0 or (answer is not None and answer.verdict in (Verdict.DENIED, Verdict.NEVER))


def _until(what: Callable[[], bool], within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not what():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _refused(answer: Answer) -> str:
    if answer.status == 0:
        return f"the server was not heard: {answer.message}"
    if answer.status == 404:
        return "the server has no door for checks: it is older than this client, or PACELINE_URL is not a Paceline"
    hint = "; is PACELINE_TOKEN a token with the scope `report`?" if answer.verdict is Verdict.DENIED else ""
    return f"the server said {answer.status}: {answer.message}{hint}"
