"""`paceline.start()`: from the surroundings to a reporting rank, or to one that does nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from paceline.digest import fresh_name, name_of
from paceline.pace import Pace
from paceline.recorder import Recorder
from paceline.reporter import Hello, Reporter
from paceline.say import say_once
from paceline.settings import Refusal, Settings, settings_read

_guard = threading.Lock()
_current: Pace | None = None


def start(
    run: str | None = None,
    *,
    coords: Mapping[str, int] | None = None,
    resumed_from_step: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    **run_fields: Any,
) -> Pace:
    """Begin to report this rank and return what the training script holds; does nothing without PACELINE_URL.

    `coords` is the rank's place in the parallel layout (`{"dp": 3, "pp": 1, "tp": 0}`); `run_fields` describe the run
    (`name`, `model`, `tokens_per_step`, `layout`, ...) and are sent by rank 0. A second call returns the same object.
    """
    global _current
    with _guard:
        if _current is None or not _current.active or _current._pid != os.getpid():
            _current = _begin(run, coords, resumed_from_step, (rank, world_size, local_rank), run_fields)
        return _current


def _begin(
    run: str | None,
    coords: Mapping[str, int] | None,
    resumed_from_step: int | None,
    place: tuple[int | None, int | None, int | None],
    run_fields: dict[str, Any],
) -> Pace:
    try:
        found = settings_read(os.environ, run=run, rank=place[0], world_size=place[1], local_rank=place[2])
        if isinstance(found, Refusal):
            if found.sentence:
                say_once("settings", found.sentence)
            return Pace(None, Recorder(), None)
        if found.rank >= found.world_size:
            say_once(
                "rank",
                f"this is rank {found.rank}, and WORLD_SIZE says {found.world_size}: ranks count from 0, so the server takes "
                "nothing of this one. Set WORLD_SIZE to the number of ranks.",
            )
        return _reporting(found, dict(coords or {}), resumed_from_step, run_fields)
    except Exception as error:  # whatever goes wrong here, training goes on
        say_once("start", f"reporting could not start: {error!r}")
        return Pace(None, Recorder(), None)


def _reporting(
    settings: Settings, coords: dict[str, int], resumed_from_step: int | None, run_fields: dict[str, Any]
) -> Pace:
    if settings.cluster:
        run_fields = {"cluster": settings.cluster, **run_fields}
    hello = Hello(resumed_from_step, run_fields if settings.rank == 0 else {}, coords)
    if settings.torchrun and settings.rank == 0:
        hello.key = f"{settings.base_key}/{fresh_name()}"
    recorder = Recorder()
    reporter = Reporter(settings, recorder, hello, find_key=_exchange(settings, hello.key))
    pace = Pace(settings, recorder, reporter)
    recorder.watch_gc()
    pace._watch_end()
    os.register_at_fork(after_in_child=pace._in_child)
    reporter.start()
    return pace


def _exchange(settings: Settings, key: str | None) -> Callable[[], str | None]:
    """Return what tells the key to a sender that doesn't know it; on rank 0 of several nodes, begin to answer them."""
    if not settings.torchrun or settings.local_world_size >= settings.world_size:
        return lambda: None  # rank 0 is on this node and says it with its hello
    from paceline.exchange import Exchange, board_find  # only torchrun jobs of several nodes need it

    job = name_of(settings.base_key)
    exchange = Exchange(lambda: board_find(os.environ, shared_dir=settings.shared_dir, job=job), key=key)
    if key is not None:
        exchange.begin()
    return exchange.found
