#!/usr/bin/env python3
"""Django's command line for Paceline; it finds the environment that `make run` installed by itself."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
NEEDED = ("django", "rest_framework", "celery", "channels", "psycopg", "numpy")
"""Enough to tell an environment of Paceline's from one that happens to have Django."""


def main() -> None:
    if not all(map(find_spec, NEEDED)):
        own_environment()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "apps.config.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


def own_environment() -> None:
    """Go on with the Python of this checkout's `.venv`, or say that there is none yet."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix).resolve() == VENV.resolve() or not os.access(python, os.X_OK):
        sys.exit(f"Paceline is not installed in {HERE} yet: `make run` installs and starts it.")
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    os.execve(python, [str(python), str(Path(__file__).resolve()), *sys.argv[1:]], inherited)  # noqa: S606


if __name__ == "__main__":
    main()
