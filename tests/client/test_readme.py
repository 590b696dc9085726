"""What the client's README names exists, and what exists is named there."""

from __future__ import annotations

import inspect
import re

import paceline

from tests.client.conftest import ROOT

README = (ROOT / "client" / "README.md").read_text()
SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "client" / "src").rglob("*.py")))
VARIABLE = re.compile(r"PACELINE_[A-Z_]+")


class TestReadme:
    def test_every_variable_is_read_and_every_variable_read_is_named(self) -> None:
        read = set(re.findall(r'"(PACELINE_[A-Z_]+)"', SOURCES))

        assert set(VARIABLE.findall(README)) == read

    def test_every_call_exists(self) -> None:
        named = set(re.findall(r"`?pace\.([a-z_]+)", README))

        assert {name for name in named if not hasattr(paceline.Pace, name)} == set()
        assert {"step", "phase", "log", "saving", "checkpoint", "note", "finish"} <= named

    def test_every_argument_of_a_call_exists(self) -> None:
        for call in (paceline.start, paceline.Pace.checkpoint, paceline.Pace.saving, paceline.Pace.finish):
            row = next(line for line in README.splitlines() if line.startswith("| `") and f"{call.__name__}(" in line)
            arguments = set(re.findall(r"([a-z_]+)=", row.split("|")[1]))
            assert arguments <= set(inspect.signature(call).parameters), call.__name__

    def test_every_program_exists(self) -> None:
        for name in re.findall(r"python -m paceline\.([a-z]+)", README):
            assert (ROOT / "client" / "src" / "paceline" / f"{name}.py").exists()
        for path in re.findall(r"`python (client/[a-z_/.]+)`", README):
            assert (ROOT / path).exists()
