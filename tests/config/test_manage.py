"""`manage.py` works from any shell: nobody has to know which environment `make run` installed into."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout nothing is installed in."""
    shutil.copy(ROOT / "manage.py", tmp_path)
    return tmp_path


def manage(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it by a Python that has no packages (`-S`), from another folder."""
    command = [sys.executable, "-S", "-E", str(checkout / "manage.py"), *words]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60, check=False)


class TestManage:
    def test_goes_on_in_the_environment_of_the_checkout(self, checkout: Path) -> None:
        python = checkout / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        python.chmod(0o755)

        done = manage(checkout, "token_create", "--name", "my run")

        assert done.stdout.splitlines() == [str(checkout / "manage.py"), "token_create", "--name", "my run"]
        assert done.returncode == 0

    def test_says_what_to_type_where_nothing_is_installed(self, checkout: Path) -> None:
        done = manage(checkout, "token_create")

        assert done.returncode == 1
        assert "`make run`" in done.stderr
        assert "Traceback" not in done.stderr
