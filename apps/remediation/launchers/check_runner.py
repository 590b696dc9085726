"""Runs one check under the local launcher's wrapper: for so long, with so much output, and its result whole or not at all.

Run as a script by an interpreter without site packages: `check_runner.py FOLDER TIMEOUT_S WORDS…`. In FOLDER it leaves
`result.json`: `state` ENDED, TIMEOUT or NOT_STARTED, `status` or `signal`, and the end of what the check said. What it
leaves running is the wrapper's to end.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time

MOST_OUTPUT = 16 * 1024
"""Bytes of the end of what a check says that are kept: the last lines say why."""


def run(timeout_s: float, words: list[str]) -> dict[str, object]:
    """Run the check; return what stands in `result.json`."""
    try:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
    except (OSError, ValueError) as error:
        reason = f"{words[0]}: {getattr(error, 'strerror', None) or error}"
        return {"state": "NOT_STARTED", "status": None, "signal": None, "output": reason}
    assert child.stdout is not None
    end, said, open_ = time.monotonic() + timeout_s, b"", True
    ready = selectors.DefaultSelector()
    ready.register(child.stdout, selectors.EVENT_READ)
    while child.poll() is None or open_:
        left_s = end - time.monotonic()
        if left_s <= 0:
            break
        if not open_:
            time.sleep(min(0.02, left_s))
        # What a check leaves behind may hold its output open: once it is over, nothing more is waited for.
        elif ready.select(min(0.2, left_s)):
            part = os.read(child.stdout.fileno(), 65_536)
            open_, said = bool(part), (said + part)[-MOST_OUTPUT:]
        elif child.poll() is not None:
            break
    late = child.poll() is None
    if late:
        os.killpg(child.pid, signal.SIGKILL)  # not collected yet, so this group is still the check's
        child.wait()
    status = child.returncode
    return {
        "state": "TIMEOUT" if late else "ENDED",
        "status": status if status >= 0 else None,
        "signal": -status if status < 0 else None,
        "output": said.decode("utf-8", "replace"),
    }


def main(arguments: list[str]) -> None:
    """Run the check and leave its result."""
    folder, timeout_s, *words = arguments
    result = run(float(timeout_s), words)
    path = os.path.join(folder, "result.json")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({**result, "ended_at": time.time()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)


if __name__ == "__main__":
    main(sys.argv[1:])
