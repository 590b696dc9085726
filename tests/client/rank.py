"""A rank as a process of its own: steps until it is told to end. Told through files in its folder, so that no pipe breaks."""

from __future__ import annotations

import argparse
import ctypes
import os
import socket
import sys
import time
from pathlib import Path

import paceline


def child_leave(file: Path) -> None:
    """Fork as a data loader does; the child writes its pid and waits for a minute at most."""
    time.sleep(0.5)  # by now there is a connection to inherit
    if os.fork() == 0:
        begun = file.with_suffix(".begun")
        begun.write_text(str(os.getpid()))
        begun.rename(file)  # whole once it is there
        time.sleep(60)
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--nan-at", type=int, default=-1)
    parser.add_argument("--block-at", type=int, default=-1, help="wait in a socket for ever, inside `communication`")
    parser.add_argument(
        "--hold-at", type=int, default=-1, help="hold the interpreter for `--hold-s`, as a stuck extension"
    )
    parser.add_argument("--hold-s", type=int, default=8)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--fork", action="store_true", help="leave a child that outlives this process")
    parser.add_argument("--end", choices=("finish", "nothing", "status-3"), default="finish")
    given = parser.parse_args()
    rank = os.environ["RANK"]
    pace = paceline.start(coords={"dp": int(rank)}, name="a run of the tests")
    if given.fork:
        child_leave(given.folder / f"{rank}.child")
    for step in range(given.steps):
        with pace.step(step):
            with pace.phase("data"):
                pass
            with pace.phase("compute"):
                time.sleep(given.step_s)
            with pace.phase("communication"):
                if step == given.block_at:
                    here, _there = socket.socketpair()
                    here.recv(1)
        if step == given.hold_at:
            ctypes.PyDLL(None).sleep(given.hold_s)  # PyDLL calls without releasing the interpreter
        if step == given.raise_at:
            raise ValueError("the loss is on fire")
        pace.log(loss=float("nan") if step == given.nan_at else 1.0 / (step + 1))
        (given.folder / f"{rank}.step").write_text(str(step))
        if pace.sends:
            (given.folder / f"{rank}.sender").touch()
        if (given.folder / "end").exists():
            break
    began = time.monotonic()
    if given.end == "finish":
        pace.finish()
    (given.folder / f"{rank}.ended").write_text(str(time.monotonic() - began))
    if given.end == "status-3":
        sys.exit(3)


if __name__ == "__main__":
    main()
