"""How the nodes of a torchrun launch learn the fresh half of their attempt key, which rank 0 draws at every worker start.

Ranks on rank 0's node hear it from the node's sender. Other nodes ask: they put a question under a number into the job's
own store (torch's, or files in PACELINE_SHARED_DIR where there is no torch), and rank 0 answers that very question. A plain
value under a fixed name would not do: the store outlives the workers, so a node that is quicker than rank 0 after a
restart would read the key of the attempt before.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from paceline.digest import fresh_name
from paceline.say import say_once

POLL_S, LATER_POLL_S = 0.25, 2.0
"""All nodes of a launch ask within seconds; later there is a question only where a sender was followed by another."""
CONNECT_S = 10.0
SAY_AFTER = 240
"""Polls (a minute) after which a node without a key says why nothing is reported."""


class Board(Protocol):
    """A place all ranks of a job can write to and read from."""

    def ask(self, nonce: str) -> None:
        """Put a question that is answered under its nonce."""

    def questions(self) -> list[str]:
        """Return the nonces of questions that were not returned before."""

    def answer(self, nonce: str, text: str) -> None: ...

    def answered(self, nonce: str) -> str | None: ...


class StoreBoard:
    """A board on torch's key-value store: questions are numbered, since a store can't be listed."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._seen = 0

    def ask(self, nonce: str) -> None:
        number = self._store.add("paceline/questions", 1)
        self._store.set(f"paceline/question/{number}", nonce)

    def questions(self) -> list[str]:
        asked = self._store.add("paceline/questions", 0)
        found = []
        while self._seen < asked:
            name = f"paceline/question/{self._seen + 1}"
            if not self._store.check([name]):
                break  # numbered, but not written yet
            self._seen += 1
            found.append(self._store.get(name).decode())
        return found

    def answer(self, nonce: str, text: str) -> None:
        self._store.set(f"paceline/answer/{nonce}", text)

    def answered(self, nonce: str) -> str | None:
        name = f"paceline/answer/{nonce}"
        return self._store.get(name).decode() if self._store.check([name]) else None


class FileBoard:
    """A board of files in a folder that all nodes see."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._seen: set[str] = set()

    def ask(self, nonce: str) -> None:
        (self._folder / f"{nonce}.question").touch()

    def questions(self) -> list[str]:
        found = {path.stem for path in self._folder.glob("*.question")} - self._seen
        self._seen |= found
        return sorted(found)

    def answer(self, nonce: str, text: str) -> None:
        written = self._folder / f"{nonce}.part"
        written.write_text(text, encoding="utf-8")
        os.replace(written, self._folder / f"{nonce}.answer")
        with contextlib.suppress(OSError):
            (self._folder / f"{nonce}.question").unlink()

    def answered(self, nonce: str) -> str | None:
        path = self._folder / f"{nonce}.answer"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            return None
        with contextlib.suppress(OSError):
            path.unlink()
        return text


def board_find(environ: Mapping[str, str], *, shared_dir: str | None, job: str) -> Board | None:
    """Return the job's board, or None while there is none; torch is used where the program itself has loaded it."""
    torch = sys.modules.get("torch")
    if torch is not None and "MASTER_ADDR" in environ:
        store = _torch_store(torch, environ)
        if store is not None:
            return StoreBoard(store)
    if shared_dir:
        return FileBoard(os.path.join(shared_dir, f"paceline-{job}"))
    return None


def _torch_store(torch: Any, environ: Mapping[str, str]) -> Any | None:
    """Return a connection of our own to the agent's store: a client may not be shared with the training's threads."""
    try:
        if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return None
        from datetime import timedelta

        return torch.distributed.TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=CONNECT_S),
        )
    except Exception:  # whatever torch raises: it is asked again at the next poll
        return None


class Exchange:
    """Runs in a thread: answers on rank 0, asks on every other node's sender."""

    def __init__(self, find: Callable[[], Board | None], *, key: str | None) -> None:
        self.key = key
        self._find = find
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._answers = key is not None

    def begin(self) -> None:
        """Start answering or asking, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
            self._thread.start()

    def found(self) -> str | None:
        """Return the key if it is known by now; asks for it from the first call on."""
        self.begin()
        return self.key

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        nonce = fresh_name()
        board: Board | None = None
        asked, polls = False, 0
        while not self._stop.wait(POLL_S if polls < SAY_AFTER else LATER_POLL_S):
            polls += 1
            try:
                board = board or self._find()
                if board is None:
                    pass
                elif self._answers:
                    for question in board.questions():
                        board.answer(question, self.key or "")
                elif not asked:
                    board.ask(nonce)
                    asked = True
                else:
                    self.key = board.answered(nonce)
            except Exception:  # the store went away, or torch raised: find it anew
                board, asked = None, False
            if self.key is not None and not self._answers:
                return
            if polls == SAY_AFTER and not self._answers:
                say_once(
                    "exchange",
                    "this node has not learnt the attempt's key from rank 0 within a minute; nothing is reported until "
                    "it does. Without torch's store, set PACELINE_SHARED_DIR to a folder that all nodes see.",
                )
