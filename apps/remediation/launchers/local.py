"""The local launcher: processes of this machine, each under a wrapper of its own that outlives Paceline.

One folder an order under `PACELINE_DATA_DIR/launches` (`wrapper.py` says what stands in it). A program is a list of
words, never a line for a shell, and its environment is written out: nothing of Paceline's own gets into it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from apps.remediation.choices import OrderKind
from apps.remediation.launchers import wrapper
from apps.remediation.launchers.processes import Process, Seen, is_all_gone, orphans_of, process_look, process_signal
from apps.remediation.launching import LaunchRefused, LaunchUnavailable, LaunchUncertain, ReadBack, Receipt
from apps.remediation.selectors.rows import LaunchFact, LaunchRow, OrderInHand

START_LIMIT_S = 10.0
"""A wrapper answers within tens of milliseconds; one that does not is looked for, not started again."""

STOP_LOOK_S = 1.5
"""How long one look at a stop waits: most programs are gone by then, and a worker is not held up by the others."""

LAST_LINES, LAST_BYTES = 100, 16_384
"""What is kept in the database of what a program said at its end."""

POLL_S = 0.01
PASSED_ON = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TMPDIR",
    "TZ",
    "USER",
    "XDG_RUNTIME_DIR",
)
"""What any program expects of its surroundings. Everything else of Paceline's environment may be a secret."""


class LocalLauncher:
    """Starts programs on this machine."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root

    def launch(self, order: OrderInHand) -> Receipt:
        folder = self.folder(order.code)
        if started := _read(folder / "started.json"):
            return _receipt(folder, started)
        answer = self._begin(folder, order)
        state = answer.get("state")
        if state == "REFUSED":
            raise LaunchRefused(str(answer.get("error")))
        started = _read(folder / "started.json")
        if state == "STARTED" and started:
            return _receipt(folder, started)
        raise LaunchUncertain("the wrapper did not say whether it began")

    def stop(self, order: OrderInHand) -> Receipt:
        launch = order.launch
        if launch is None:
            raise LaunchRefused("Paceline did not start this attempt, so it cannot stop it")
        process = _process(launch)
        if order.asked_at is None and not process_signal(process, signal.SIGTERM):
            self._orphans_signal(launch, process, signal.SIGTERM)
        elif order.asked_at is not None and _grace_over(order) and process_look(process) == Seen.GONE:
            self._orphans_signal(launch, process, signal.SIGKILL)
        deadline = time.monotonic() + STOP_LOOK_S
        while not (gone := self._is_gone(launch, process)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if gone:
            return Receipt(f"the program under pid {launch.pid} and all its descendants are gone", {"pid": launch.pid})
        text = f"the program under pid {launch.pid} was asked to leave and has {order.setting.stop_grace_s:g} s"
        return Receipt(text, {"pid": launch.pid}, done=False)

    def read_back(self, order: OrderInHand) -> ReadBack:
        if order.kind == OrderKind.STOP:
            return self._stop_read_back(order)
        folder = self.folder(order.code)
        if refused := _read(folder / "refused.json"):
            return ReadBack(False, Receipt(str(refused.get("error", "it could not be started"))))
        deadline = time.monotonic() + STOP_LOOK_S
        while time.monotonic() < deadline:
            if started := _read(folder / "started.json"):
                return ReadBack(True, _receipt(folder, started))
            if _fence(folder, order.tries):
                return ReadBack(False, Receipt("its wrapper never began, and cannot any more"))
            handle = wrapper.lock_taken(str(folder))
            if handle is not None:
                os.close(handle)
                if not (folder / "started.json").exists():
                    return ReadBack(False, Receipt("its wrapper died before it began"))
            time.sleep(POLL_S)
        return ReadBack(None, Receipt("its wrapper lives but does not say whether it began"))

    def look(self, launch: LaunchRow) -> LaunchFact | None:
        process = _process(launch)
        folder = Path(launch.directory)
        if ended := _read(folder / "exit.json"):
            return LaunchFact(
                gone=True,
                ended_at=datetime.fromtimestamp(float(ended["ended_at"]), UTC),
                status=ended["status"],
                signal=ended["signal"],
                asked=bool(ended["asked"]),
                last_words=_said(folder),
                note=str(ended.get("oom", "")),
            )
        seen = process_look(process)
        if seen == Seen.HIDDEN:
            return None
        if seen == Seen.ALIVE or not is_all_gone(process, mark=_mark(launch)):
            return LaunchFact(gone=False)
        # Written between the two looks, or never: the wrapper itself was killed. What was said is on disk all the same.
        if (folder / "exit.json").exists():
            return self.look(launch)
        return LaunchFact(gone=True, last_words=_said(folder))

    def trim(self, launches: Iterable[LaunchRow]) -> int:
        """Remove the folders of launches that are long over; return how many went."""
        return self.trim_folders([Path(launch.directory) for launch in launches if launch.directory])

    def trim_folders(self, old: Iterable[Path]) -> int:
        """Remove folders, and nothing outside our own; return how many went."""
        root = self.folder("").resolve()
        gone = [folder for folder in old if folder.resolve().parent == root and folder.is_dir()]
        for folder in gone:
            shutil.rmtree(folder, ignore_errors=True)
        return len(gone)

    def folder(self, order_code: str) -> Path:
        """Return an order's folder."""
        return (self._root or Path(settings.DATA_DIR) / "launches") / order_code

    def _begin(self, folder: Path, order: OrderInHand) -> dict[str, Any]:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", wrapper.__file__, str(folder), str(order.tries)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchUnavailable(f"no wrapper could be started: {error.strerror or error}") from error
        words = {
            "command": list(order.setting.command),
            "directory": order.setting.directory,
            "environment": environment_of(order),
            "stop_grace_s": order.setting.stop_grace_s,
            "limits": order.setting.limits,
        }
        try:
            answer, _ = child.communicate(json.dumps(words).encode(), timeout=START_LIMIT_S)
            return dict(json.loads(answer or b"{}"))
        except (subprocess.TimeoutExpired, ValueError, OSError) as error:
            child.kill()
            child.wait()
            raise LaunchUncertain("the wrapper did not answer") from error

    def _stop_read_back(self, order: OrderInHand) -> ReadBack:
        launch = order.launch
        if launch is None:
            return ReadBack(False, Receipt("Paceline did not start this attempt"))
        if process_look(_process(launch)) == Seen.HIDDEN:
            return ReadBack(None, Receipt("it runs in another container, where Paceline cannot look"))
        if self._is_gone(launch, _process(launch)):
            return ReadBack(True, Receipt(f"pid {launch.pid} is gone", {"pid": launch.pid}))
        return ReadBack(False, Receipt(f"pid {launch.pid} still runs; it is asked again"))

    def _is_gone(self, launch: LaunchRow, process: Process) -> bool:
        if (Path(launch.directory) / "exit.json").exists():
            return True
        return is_all_gone(process, mark=_mark(launch))

    def _orphans_signal(self, launch: LaunchRow, process: Process, number: int) -> None:
        for orphan in orphans_of(process, mark=_mark(launch)):
            process_signal(orphan, number)


def environment_of(order: OrderInHand) -> dict[str, str]:
    """Return the whole environment of what an order starts."""
    own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    told = {
        "PACELINE_URL": local_url(),
        "PACELINE_TOKEN": order.token,
        "PACELINE_RUN": order.run,
        "PACELINE_ATTEMPT_KEY": order.attempt_key,
        "PACELINE_RESUME_STEP": "" if order.resume_step is None else str(order.resume_step),
        "PACELINE_NODES": ",".join(order.nodes),
        "PACELINE_EXCLUDE_NODES": ",".join(order.exclude_nodes),
    }
    # The run's settings may name another way to this server; who it is and what it is told is not theirs to change.
    url = order.setting.environment.get("PACELINE_URL", told["PACELINE_URL"])
    return {**own, **order.setting.environment, **told, "PACELINE_URL": url}


def local_url() -> str:
    """Return the address under which a program of this machine reaches Paceline: its own port, not a proxy's."""
    host, _, port = settings.BIND.rpartition(":")
    return f"http://{'127.0.0.1' if host in ('', '0.0.0.0', '[::]') else host}:{port}"  # noqa: S104 - compared, not bound


def last_words(path: Path) -> str:
    """Return the end of what a program said, for whoever asks why it ended: at most 100 lines, and 16 KiB of them."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        said = file.read(LAST_BYTES).decode("utf-8", "replace").replace("\0", "")  # an older part may be a hole
        return "\n".join(said.strip().splitlines()[-LAST_LINES:])
    return ""


def _said(folder: Path) -> str:
    """Return the last words of a launch: of its errors, else of its output."""
    return last_words(folder / "stderr.log") or last_words(folder / "stdout.log")


def _process(launch: LaunchRow) -> Process:
    return Process(launch.boot_id, launch.pid_namespace, launch.pid or 0, launch.start_ticks or 0)


def _mark(launch: LaunchRow) -> str:
    return f"PACELINE_ATTEMPT_KEY={launch.key}"


def _grace_over(order: OrderInHand) -> bool:
    """Return whether a stop's grace has passed by the time at which this order was taken in hand."""
    assert order.asked_at is not None
    return (order.claimed_at - order.asked_at).total_seconds() >= order.setting.stop_grace_s


def _fence(folder: Path, try_number: int) -> bool:
    """Take the right to begin this try away from a wrapper that may still be on its way; False if it has begun."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(folder / f"begun-{try_number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def _receipt(folder: Path, started: dict[str, Any]) -> Receipt:
    facts = {name: started[name] for name in ("boot_id", "pid_namespace", "pid", "start_ticks")}
    return Receipt(f"runs as pid {started['pid']}", {"directory": str(folder), **facts})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
