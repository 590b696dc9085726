"""How the interpreter ends: by an exception that nobody caught, by a status the program gave, or as it should."""

from __future__ import annotations

import sys
import traceback
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any, Callable, NoReturn

from paceline.recorder import Recorder
from paceline.say import say_once

MAX_TEXT = 4_000
"""What the server keeps of one event's text. Of a trace the end is kept: it says what happened."""
INTERRUPTED = 128 + 2
"""What a shell makes of a program that SIGINT ended, as Python does with a KeyboardInterrupt nobody catches."""


class Ending:
    """Listens where the interpreter tells how it ends. An exit handler is told nothing, so `sys.exit` is listened to as well."""

    def __init__(self, recorder: Recorder, *, tell: Callable[[str], None]) -> None:
        self._recorder = recorder
        self._tell = tell
        self._earlier_hook = sys.excepthook
        self._earlier_exit = sys.exit
        self._failure: tuple[int, str] | None = None
        self._asked: tuple[Any, int | None] | None = None

    def watch(self) -> None:
        """Be called at an exception that nobody catches, and at `sys.exit`."""
        self._earlier_hook, sys.excepthook = sys.excepthook, self._hook
        self._earlier_exit, sys.exit = sys.exit, self._exit

    def unwatch(self) -> None:
        """Listen no more; what somebody else put in our place stays."""
        if sys.excepthook == self._hook:
            sys.excepthook = self._earlier_hook
        if sys.exit == self._exit:
            sys.exit = self._earlier_exit

    def words(self) -> dict[str, Any]:
        """Return what a goodbye without `finish` says of the end: `code` and `text` of a failure, else that it is `clean`."""
        if self._failure is not None:
            return {"code": self._failure[0], "text": self._failure[1]}
        if self._asked is not None and self._asked[1] == self._recorder.last_step:  # else it was caught and outlived
            given = self._asked[0]
            status = given & 0xFF if isinstance(given, int) else given is not None
            if status:
                return {"code": int(status), "text": f"sys.exit({given!r})"[:MAX_TEXT]}
        return {"clean": True}

    def _hook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Tell an exception at once; the exit follows when the process really ends."""
        try:
            lines = traceback.format_exception(kind, error, trace)
            code = INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1
            self._failure = (code, lines[-1].strip()[:MAX_TEXT])
            self._tell("".join(lines)[-MAX_TEXT:])
        except Exception as failure:
            say_once("exception", f"an exception could not be told: {failure!r}")
        self._earlier_hook(kind, error, trace)

    def _exit(self, status: Any = None, /) -> NoReturn:
        if current_thread() is main_thread():  # in another thread it ends that thread alone
            self._asked = (status, self._recorder.last_step)
        self._earlier_exit(status)
