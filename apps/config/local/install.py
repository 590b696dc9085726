"""Set up `.venv` and go on in it. The only file of Paceline that any Python can run: standard library, nothing of ours.

`python3 install.py EXTRAS [--browser] [-- WORDS…]` makes the environment where it is missing or out of date, then becomes
`.venv/bin/python WORDS…` where there are any. It says what it does while it does it, and a sentence instead of a traceback when it can't.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

REPOSITORY = Path(__file__).resolve().parents[3]
VENV = REPOSITORY / ".venv"
PYTHON = VENV / "bin/python"
STAMP = VENV / "paceline.json"
LOG = VENV / "install.log"
OLDEST = (3, 11)
SERVED = "apps.config.local"
PROJECTS = ("pyproject.toml", "client/pyproject.toml")

STILL_S = 5.0
"""After so long without a word a person wonders whether anything happens."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class InstallFailed(Exception):
    """A step of the set-up failed; the text is for people."""


def say(sentence: str) -> None:
    """Write one line, at once."""
    print(f"{'set-up':<10} {sentence}", flush=True)


def run(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run `command`, its output kept in the log, and say how it goes.

    Raises: InstallFailed.
    """
    say(f"{what} …")
    began_s = told_s = time.monotonic()
    with LOG.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=REPOSITORY, env=environment
        )
        while process.poll() is None:
            time.sleep(0.05)
            if time.monotonic() - told_s > STILL_S:
                told_s = time.monotonic()
                say(f"… still at it after {told_s - began_s:.0f} s")
    if process.returncode != 0:
        raise InstallFailed(failure_words(what, start))


def failure_words(what: str, start: int) -> str:
    """Return why a step failed, from what it wrote to the log behind `start`."""
    text = LOG.read_bytes()[start:].decode("utf-8", "replace")
    if "No space left on device" in text:
        return f"The disk that holds {REPOSITORY} is full. Free some space there, then run the same command again."
    tail = "\n".join(f"    {line}" for line in text.strip().splitlines()[-12:])
    return f"Set-up failed while {what}:\n{tail}\n  Whole log: {LOG}"


def python_version(python: Path) -> tuple[int, int] | None:
    """Return the version of an interpreter, None where it does not run."""
    probe = "import sys, pip; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([str(python), "-c", probe], capture_output=True, text=True, check=True, timeout=60)
        major, minor = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return int(major), int(minor)


def venv_ensure() -> None:
    """Make `.venv`, anew where the one that is there cannot be used.

    Raises: InstallFailed.
    """
    found = python_version(PYTHON) if PYTHON.exists() else None
    if found and found >= OLDEST:
        return
    if importlib.util.find_spec("ensurepip") is None:
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise InstallFailed(
            f"This Python cannot make virtual environments. Install the package {name} (Debian and Ubuntu: "
            f"apt-get install {name}), then run the same command again."
        )
    if VENV.exists():
        say(f"{VENV} does not work with a Python this machine has; it is made anew.")
        shutil.rmtree(VENV)
    VENV.mkdir()
    version = ".".join(map(str, sys.version_info[:3]))
    run(f"making .venv with Python {version}", [sys.executable, "-m", "venv", str(VENV)])


def fingerprint() -> str:
    """Return a text that changes when what is to be installed changes."""
    digest = hashlib.sha256(repr((python_version(PYTHON), str(REPOSITORY))).encode())
    for name in PROJECTS:
        digest.update((REPOSITORY / name).read_bytes())
    return digest.hexdigest()


def packages_ensure(extras: set[str]) -> None:
    """Install Paceline, its client and `extras`, unless the stamp says that they are there already.

    Raises: InstallFailed.
    """
    mark = fingerprint()
    try:
        stamp = json.loads(STAMP.read_text("utf-8"))
    except (OSError, ValueError):
        stamp = {}
    if stamp.get("fingerprint") == mark and extras <= set(stamp.get("extras", [])):
        return
    extras = extras | set(stamp.get("extras", []))
    wanted = ["--editable", f".[{','.join(sorted(extras))}]", "--editable", "client"]
    try:
        uv = uv_ensure()
        command = [uv, "pip", "install", "--python", str(PYTHON), *wanted]
        run("installing packages", command, uv_environment())
    except InstallFailed as failure:
        if "is full" in str(failure):
            raise
        say("the quick installer failed, trying pip, which takes longer.")
        run("installing packages with pip", [str(PYTHON), "-m", "pip", "install", *wanted])
    STAMP.write_text(json.dumps({"fingerprint": mark, "extras": sorted(extras)}) + "\n", "utf-8")


def uv_ensure() -> str:
    """Return where uv is, installed into `.venv` if this machine has none.

    Raises: InstallFailed.
    """
    own = VENV / "bin/uv"
    if not own.exists():
        if found := shutil.which("uv"):
            return found
        run("installing the installer", [str(PYTHON), "-m", "pip", "install", "uv"])
    return str(own)


def uv_environment() -> dict[str, str]:
    """Return the environment for uv, with the index and certificates that pip is set up for: uv reads none of that."""
    environment = dict(os.environ)
    done = subprocess.run([str(PYTHON), "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    for name, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
        value = settings.get(f":env:.{name}") or settings.get(f"global.{name}")
        if value:
            environment.setdefault(variable, value.strip("'\""))
    return environment


def browser_ensure() -> None:
    """Install Chromium for the browser tests where that is possible without asking anybody; else say what is missing."""
    if any(shutil.which(name) for name in BROWSERS):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run("fetching the list of system packages", ["apt-get", "update"], environment)
        run("installing Chromium", ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"], environment)
    else:
        say("the browser tests need Chromium: sudo apt-get install chromium")


def become(words: list[str]) -> NoReturn:
    """Go on as `.venv/bin/python WORDS…`."""
    os.chdir(REPOSITORY)
    os.environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if words[:2] == ["-m", SERVED]:
        # Between two programs nobody can answer Ctrl-C: it waits until the next one is there.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(PYTHON, [str(PYTHON), *words])  # noqa: S606


def main(arguments: list[str]) -> int:
    """Set up, then become what stands behind `--`; return 1 where the set-up fails."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = arguments[:split], arguments[split + 1 :]
    try:
        venv_ensure()
        packages_ensure({extra for option in options if not option.startswith("-") for extra in option.split(",")})
        if "--browser" in options:
            browser_ensure()
    except InstallFailed as failure:
        print(f"\n  {failure}\n", flush=True)
        return 1
    except OSError as error:
        print(f"\n  Set-up failed: {error.strerror or error} ({error.filename or REPOSITORY}).\n", flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    if words:
        become(words)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
