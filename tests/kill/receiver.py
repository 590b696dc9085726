"""A site's webhook receiver for the kill tests: a process of its own that may be killed, and that can be made to wait.

`receiver.py PORT FOLDER PROGRAM TOKEN URL`. Each run has a folder of its own under FOLDER. What it was asked and what it
did stands in the run's `evidence`: `post ORDER`, `did ORDER`, `again ORDER` where an order came that it had done before.
While the run's folder holds `hold-before` or `hold-after` it waits before or after doing what it is asked; `fail-before`
and `fail-after` make it answer 500. It takes an order at its word and knows it by its evidence alone, as after a crash.
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, ROOT, PROGRAM, TOKEN, URL = sys.argv[1:6]
POLL_S = 0.01


def say(folder: str, *words: object) -> None:
    handle = os.open(os.path.join(folder, "evidence"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, (" ".join(map(str, words)) + "\n").encode())
    os.close(handle)


def lines(folder: str) -> list[list[str]]:
    try:
        with open(os.path.join(folder, "evidence"), encoding="utf-8") as file:
            return [line.split() for line in file]
    except FileNotFoundError:
        return []


def has(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def waits(folder: str, name: str) -> None:
    while has(folder, name):
        time.sleep(POLL_S)


def ticks(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def stop(folder: str) -> None:
    """Stop what runs of a run, and wait until it is gone."""
    for words in lines(folder):
        if words[0] in ("begun", "double") and ticks(int(words[2])) == int(words[3]):
            os.kill(int(words[2]), signal.SIGTERM)
            while ticks(int(words[2])) == int(words[3]):
                time.sleep(POLL_S)


def do(folder: str, order: dict[str, object]) -> None:
    """Do what an order says, as far as it was not done before."""
    if ["did", str(order["order"])] in lines(folder):
        say(folder, "again", order["order"])
        return
    stop(folder)
    if order["kind"] != "STOP_RUN":
        begin(folder, order)
    say(folder, "did", order["order"])


def begin(folder: str, order: dict[str, object]) -> None:
    environment = {
        "PACELINE_URL": URL,
        "PACELINE_TOKEN": TOKEN,
        "PACELINE_RUN": str(order["run"]),
        "PACELINE_ATTEMPT_KEY": str(order["attempt_key"]),
        "PACELINE_RESUME_STEP": str(order["resume_step"] or ""),
        "PACELINE_KILL_FOLDER": ROOT,
    }
    subprocess.Popen(
        [sys.executable, "-I", "-S", PROGRAM, folder],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not any(words[0] in ("begun", "double") and words[1] == order["attempt_key"] for words in lines(folder)):
        time.sleep(POLL_S)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        folder = os.path.join(ROOT, str(order["run"]))
        say(folder, "post", order["order"])
        waits(folder, "hold-before")
        if has(folder, "fail-before"):
            self.answer(500, {"message": "before it was done"})
            return
        do(folder, order)
        waits(folder, "hold-after")
        if has(folder, "fail-after"):
            self.answer(500, {"message": "after it was done"})
            return
        self.answer(200, {"receipt": f"job of {order['order']}"})

    def do_GET(self) -> None:
        order = self.path.rpartition("/")[2]
        done = any(["did", order] in lines(entry.path) for entry in os.scandir(ROOT) if entry.is_dir())
        self.answer(200 if done else 404, {"receipt": f"job of {order}"} if done else {})

    def answer(self, status: int, words: dict[str, object]) -> None:
        content = json.dumps(words).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            pass  # whoever asked was killed meanwhile

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # what ends here is nobody's to collect
    server = ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler)
    server.daemon_threads = True
    server.serve_forever()
