"""What a training script holds: `step`, `phase`, `log`, `checkpoint`, `finish`. None of them raises, none of them waits."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import get_ident
from time import perf_counter, time
from typing import Any

from paceline.deferred import DeferredReader
from paceline.ending import MAX_TEXT, Ending
from paceline.packing import utc_text
from paceline.recorder import Phase, Recorder, Step
from paceline.reporter import Reporter
from paceline.say import say_once
from paceline.settings import Settings

CHECKPOINT_STATES = ("STARTED", "QUEUED", "WRITTEN", "SAVED", "FAILED", "DELETED", "RESTORED")
FINISH_S = 5.0
"""How long `finish` may wait for the last reports."""
AT_EXIT_S = 2.0
"""How long an exit without `finish` may be held up."""
_NOTHING: AbstractContextManager[None] = nullcontext()


class Pace:
    """The reporting of one rank. Where reporting is off, every call does nothing."""

    def __init__(self, settings: Settings | None, recorder: Recorder, reporter: Reporter | None) -> None:
        self._settings = settings
        self._recorder = recorder
        self._reporter = reporter
        self._step = Step(recorder)
        self._phases: dict[str, Phase] = {}
        self._deferred = DeferredReader(recorder)
        self._pid = os.getpid()
        self._ending = Ending(recorder, tell=self._on_exception)
        self._done = reporter is None

    @property
    def active(self) -> bool:
        """True while this process reports."""
        return not self._done

    @property
    def sends(self) -> bool:
        """True while this process is the sender of its node."""
        hub = self._reporter.hub if self._reporter is not None else None
        return hub is not None and hub.alive

    @property
    def rank(self) -> int:
        return self._settings.rank if self._settings else 0

    @property
    def last_step(self) -> int | None:
        """The last step that was completed."""
        return self._recorder.last_step

    @property
    def current_step(self) -> int | None:
        """The step under way, else the last one."""
        return self._recorder.current_step

    @property
    def resume_step(self) -> int | None:
        """The step the launcher asks to resume from (PACELINE_RESUME_STEP), None for the newest."""
        return self._settings.resume_step if self._settings else None

    # -- the hot path ----------------------------------------------------------------------------------------------
    def step(self, number: int) -> AbstractContextManager[None]:
        """Measure one step: `with pace.step(n):`. A step left by an exception has not been completed and is not sent."""
        if self._done:
            return _NOTHING
        self._recorder.thread = get_ident()
        self._step.number = number if type(number) is int else self._whole(number)
        return self._step

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Measure a phase of a step: `with pace.phase("data"):`. In another thread than the training's it does nothing."""
        try:
            return self._phases[name]
        except Exception:
            return self._phase_new(name)

    def shown(self, name: str) -> AbstractContextManager[None]:
        """Show a phase in this rank's beats without counting its time: for work whose time is measured elsewhere."""
        return _NOTHING if self._done else Phase(self._recorder, str(name), None)

    def fetched(self, seconds: float) -> None:
        """Count time spent on fetching a batch, between steps, to the next step."""
        self._recorder.data_before += seconds

    def log(self, values: Mapping[str, Any] | None = None, /, *, step: int | None = None, **more: Any) -> None:
        """Send numbers of the step under way, or of the last one: `pace.log(loss=loss)`.

        A value on a device is read in the background. What is no number is counted as lost, never raised.
        """
        if self._done:
            return
        recorder = self._recorder
        try:
            if values:
                more = {**values, **more}
            ours = step is None and get_ident() == recorder.thread
            slots, found = recorder.slots, {}
            for name, value in more.items():
                if ours and type(value) is float and name in slots:
                    found[slots[name]] = value
                else:
                    self._log_one(name, value, step)
            if found:
                recorder.set_now(found)
        except Exception:
            recorder.lost_values += 1

    def _log_one(self, name: str, value: Any, step: int | None) -> None:
        recorder = self._recorder
        try:
            slot = recorder.slot(str(name))
            if slot is None or value is None:
                return
            at = recorder.current_step if step is None else int(step)
            if at is None:
                raise ValueError("no step yet")
            if getattr(value, "is_cuda", False):
                self._deferred.put(at, slot, value)
                return
            if isinstance(value, (str, bytes)):
                raise ValueError("text is no number")
            if hasattr(value, "detach"):
                value = value.detach()
            if step is None and get_ident() == recorder.thread:
                recorder.set_now({slot: float(value)})
            else:
                recorder.set_late(at, slot, float(value))
        except Exception:  # a value of any foreign type may raise anything here
            recorder.lost_values += 1

    # -- facts -----------------------------------------------------------------------------------------------------
    def checkpoint(
        self,
        step: int,
        state: str | None = None,
        *,
        kind: str = "save",
        duration_s: float | None = None,
        queue_s: float | None = None,
        blocking_s: float | None = None,
        bytes: int | None = None,  # noqa: A002  # the report's own word
        ranks: list[int] | None = None,
    ) -> None:
        """Tell what became of a checkpoint.

        `SAVED` is said once, by the process that commits the whole of it (the default of rank 0); a rank's own shard is
        `WRITTEN` (the default of the others). A restore is `checkpoint(step, "RESTORED", kind="restore")`.
        """
        if self._done:
            return
        word = (state or ("SAVED" if self.rank == 0 else "WRITTEN")).upper()
        if word not in CHECKPOINT_STATES:
            say_once(f"checkpoint {word}", f"{word} is no checkpoint state ({', '.join(CHECKPOINT_STATES)}); not sent")
            return
        fact = {
            "step": self._whole(step),
            "state": word,
            "kind": kind,
            "happened_at": utc_text(time()),
            "duration_s": duration_s,
            "queue_s": queue_s,
            "blocking_s": blocking_s,
            "bytes": bytes,
            "ranks": ranks,
        }
        self._fact("checkpoints", {key: value for key, value in fact.items() if value is not None})

    @contextmanager
    def saving(
        self,
        step: int,
        *,
        commits: bool | None = None,
        bytes: int | None = None,  # noqa: A002
    ) -> Iterator[None]:
        """Measure a save: STARTED, then WRITTEN (and SAVED where this process commits the whole), FAILED on an exception."""
        began = perf_counter()
        self.checkpoint(step, "STARTED")
        with self.phase("checkpoint"):
            try:
                yield
            except BaseException:
                self.checkpoint(step, "FAILED", duration_s=perf_counter() - began)
                raise
        took = perf_counter() - began
        self.checkpoint(step, "WRITTEN", duration_s=took, blocking_s=took, bytes=bytes)
        if self.rank == 0 if commits is None else commits:
            self.checkpoint(step, "SAVED", duration_s=took, blocking_s=took, bytes=bytes)

    def note(self, text: str, *, kind: str = "note", hurry: bool = False) -> None:
        """Send a line for the run's log."""
        if self._done:
            return
        self._fact("events", {"kind": kind, "happened_at": utc_text(time()), "text": str(text)[:MAX_TEXT]})
        if hurry and self._reporter is not None:
            self._reporter.hurry()

    # -- the end ---------------------------------------------------------------------------------------------------
    def finish(self, reason: str = "FINISHED", *, timeout_s: float = FINISH_S) -> None:
        """Send the rest and end the attempt (rank 0 says so); call it where training has ended as it should.

        Waits at most `timeout_s`; what is not delivered then stays on disk for the node's next sender.
        """
        words: dict[str, Any] = {"finished": True}
        if self.rank == 0:
            words["end"] = reason.upper()
        self._close(words, timeout_s)

    def _close(self, words: dict[str, Any], timeout_s: float) -> None:
        if self._done or self._pid != os.getpid():
            return
        self._deferred.drain(min(timeout_s / 2, 1.0))
        self._done = True
        self._recorder.end("shutdown")
        self._recorder.unwatch_gc()
        atexit.unregister(self._at_exit)
        self._ending.unwatch()
        try:
            assert self._reporter is not None
            self._reporter.finish(words, timeout_s)
        except Exception as error:
            say_once("finish", f"the last reports could not be handed over: {error!r}")

    def _at_exit(self) -> None:
        self._close({"finished": False, **self._ending.words()}, AT_EXIT_S)

    def _on_exception(self, trace: str) -> None:
        if not self._done:
            self.note(trace, kind="log", hurry=True)

    def _watch_end(self) -> None:
        """Be called at the process's end, and at an exception that nobody catches."""
        atexit.register(self._at_exit)
        self._ending.watch()

    def _in_child(self) -> None:
        """A forked child (a data loader's worker) neither reports nor keeps the connection of a dead parent open."""
        self._done = True
        self._recorder.end("unknown")
        self._recorder.unwatch_gc()
        if self._reporter is not None:
            with suppress(OSError):
                self._reporter.close_in_child()

    # -- small parts -----------------------------------------------------------------------------------------------
    def _phase_new(self, name: str) -> AbstractContextManager[None]:
        if self._done:
            return _NOTHING
        word = str(name)
        slot = self._recorder.slot(f"{word}_s")
        if slot is None:
            return _NOTHING
        return self._phases.setdefault(word, Phase(self._recorder, word, slot))

    def _fact(self, kind: str, fields: dict[str, Any]) -> None:
        self._recorder.fact(kind, fields)

    def _whole(self, number: Any) -> int:
        try:
            return int(number)
        except Exception:
            self._recorder.lost_values += 1
            return self._recorder.last_step or 0
