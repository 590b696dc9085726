"""Thin integration with transformers: `Trainer(..., callbacks=[PacelineCallback()])`.

Steps, the optimizer, fetching, evaluation and saves are measured on every rank; the trainer's own step numbers are kept,
so that a checkpoint's folder and its step agree.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from paceline.begin import start
from paceline.pace import Pace

LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss")


class PacelineCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Reports a Trainer's steps; `fields` describe the run, as with `paceline.start`."""

    def __init__(self, pace: Pace | None = None, **fields: Any) -> None:
        self._pace = pace
        self._fields = fields
        self._open: list[AbstractContextManager[None]] = []
        self._shown: AbstractContextManager[None] | None = None
        self._idle_since = 0.0

    # -- the trainer's calls ---------------------------------------------------------------------------------------
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._pace is None:
            self._pace = start(resumed_from_step=state.global_step or None, **self._fields)
        self._idle()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        pace = self._own()
        pace.fetched(self._idle_end())
        self._enter(pace.step(state.global_step + 1))
        self._enter(pace.phase("compute"))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._leave(down_to=1)
        self._enter(self._own().phase("optimizer"))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._leave(down_to=1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._leave(down_to=0)
        self._idle()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if not self._open and self._shown is None:
            self._shown = self._own().shown("evaluation")
            self._shown.__enter__()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._own().log({"evaluation_s": self._idle_end()})
        self._idle()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        took_s = self._idle_end()
        self._own().log({"checkpoint_s": took_s})
        self._own().checkpoint(state.global_step, duration_s=took_s, blocking_s=took_s)
        self._idle()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._own().log({name: logs[name] for name in LOGGED if name in logs} if logs else None)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._idle_end()
        self._own().finish()

    # -- between steps ---------------------------------------------------------------------------------------------
    def _own(self) -> Pace:
        if self._pace is None:
            self._pace = start(**self._fields)
        return self._pace

    def _idle(self) -> None:
        """Nothing of ours is under way: what comes next (a fetch, a save, an evaluation) is told when it has ended."""
        self._idle_since = perf_counter()

    def _idle_end(self) -> float:
        """Return the seconds since the last thing ended."""
        if self._shown is not None:
            self._shown.__exit__(None, None, None)
            self._shown = None
        return perf_counter() - self._idle_since

    def _enter(self, context: AbstractContextManager[None]) -> None:
        context.__enter__()
        self._open.append(context)

    def _leave(self, *, down_to: int) -> None:
        while len(self._open) > down_to:
            self._open.pop().__exit__(None, None, None)
