"""What the runs of the kill tests start: it writes down that it lives, reports one step, and stays until it is asked to leave.

`program.py FOLDER`, standard library only. Its own account is the witness: `alive.lock` in FOLDER is held for life, so
that a second one of the same run finds it taken and says so, whatever Paceline believes. In `evidence` it leaves lines
`begun KEY PID TICKS`, `double KEY PID TICKS`, `left KEY`. While FOLDER holds `quiet` it does not report; while it holds
`slow` it takes up to three seconds to leave.
"""

import fcntl
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request

POLL_S = 0.05
SLOW_S = 3.0


def say(folder: str, *words: object) -> None:
    """Add a line to the evidence, whole or not at all."""
    handle = os.open(os.path.join(folder, "evidence"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, (" ".join(map(str, words)) + "\n").encode())
    os.close(handle)


def own_ticks() -> int:
    """Return when this process started, in ticks since boot."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def ask(path: str, body: dict[str, object]) -> tuple[int, dict[str, object]]:
    """Return status and answer of a request to Paceline, 0 where none came."""
    request = urllib.request.Request(
        f"{os.environ['PACELINE_URL']}/api/v1/{path}",
        method="POST",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['PACELINE_TOKEN']}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {}
    except (OSError, ValueError):
        return 0, {}


def report(folder: str, key: str) -> None:
    """Report one step, again and again until it is accepted."""
    attempt, step = "", int(os.environ.get("PACELINE_RESUME_STEP") or 0) + 1
    while True:
        time.sleep(POLL_S)
        if os.path.exists(os.path.join(folder, "quiet")):
            continue
        if not attempt:
            opened = {"key": key, "world_size": 1, "nodes": [f"node-{os.environ['PACELINE_RUN']}"]}
            attempt = str(ask(f"runs/{os.environ['PACELINE_RUN']}/attempts", opened)[1].get("id", ""))
        if attempt and ask(f"attempts/{attempt}/reports", body(step))[0] == 202:
            return


def body(step: int) -> dict[str, object]:
    """Return a report of one step of one rank."""
    steps = {"ranks": [0], "steps": [step], "metrics": {"step_s": [[1.0]]}}
    return {"sender": "kill", "boot": f"{os.getpid()}-{own_ticks()}", "seq": 1, "steps": steps}


def main(folder: str) -> None:
    """Live."""
    key = os.environ["PACELINE_ATTEMPT_KEY"]
    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: leave(folder, key, leaving))
    lock = os.open(os.path.join(folder, "alive.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        word = "begun"
    except OSError:
        word = "double"
    say(folder, word, key, os.getpid(), own_ticks())
    report(folder, key)
    while True:
        time.sleep(3600)


def leave(folder: str, key: str, leaving: list[int]) -> None:
    """Leave, slowly where that is asked for."""
    if leaving:
        return
    leaving.append(1)
    say(folder, "asked", key)
    deadline = time.monotonic() + SLOW_S
    while os.path.exists(os.path.join(folder, "slow")) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    say(folder, "left", key)
    os._exit(143)


if __name__ == "__main__":
    main(sys.argv[1])
