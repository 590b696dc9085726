"""The set-up: what it decides and what it says. That it works from nothing is proven by `flows/test_make_run.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.config.local import install

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without `.venv`."""
    (tmp_path / "client").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "client/pyproject.toml").write_text("[project]\n")
    for name, place in {
        "REPOSITORY": tmp_path,
        "VENV": tmp_path / ".venv",
        "PYTHON": tmp_path / ".venv/bin/python",
        "STAMP": tmp_path / ".venv/paceline.json",
        "LOG": tmp_path / ".venv/install.log",
    }.items():
        monkeypatch.setattr(install, name, place)
    return tmp_path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the set-up would run, instead of running it."""
    ran: list[list[str]] = []
    monkeypatch.setattr(install, "run", lambda _what, command, _environment=None: ran.append(command))
    return ran


@pytest.fixture
def venv(checkout: Path) -> Path:
    """A `.venv` whose Python works."""
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").symlink_to(sys.executable)
    return checkout / ".venv"


class TestVenv:
    def test_a_working_one_is_left_alone(self, venv: Path, commands: list[list[str]]) -> None:
        install.venv_ensure()

        assert commands == []

    def test_a_missing_one_is_made(self, checkout: Path, commands: list[list[str]]) -> None:
        install.venv_ensure()

        assert commands == [[sys.executable, "-m", "venv", str(checkout / ".venv")]]

    def test_one_whose_python_is_gone_is_made_anew(
        self, venv: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
    ) -> None:
        (venv / "bin/python").unlink()
        (venv / "bin/python").touch()

        install.venv_ensure()

        assert commands == [[sys.executable, "-m", "venv", str(venv)]]
        assert "is made anew" in capsys.readouterr().out

    def test_a_python_without_ensurepip_names_the_package_that_is_missing(
        self, checkout: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"

        with pytest.raises(install.InstallFailed, match=rf"apt-get install {package}\)"):
            install.venv_ensure()


class TestPackages:
    def test_are_installed_once(self, venv: Path, commands: list[list[str]]) -> None:
        install.packages_ensure({"local"})
        first = [command for command in commands if "--editable" in command]
        commands.clear()

        install.packages_ensure({"local"})

        assert first[0][-4:] == ["--editable", ".[local]", "--editable", "client"]
        assert commands == []

    def test_are_installed_again_when_a_project_file_changes(self, venv: Path, commands: list[list[str]]) -> None:
        install.packages_ensure({"local"})
        commands.clear()
        (venv.parent / "client/pyproject.toml").write_text("[project]\nversion = '2'\n")

        install.packages_ensure({"local"})

        assert any("--editable" in command for command in commands)

    def test_a_larger_set_holds_a_smaller_one(self, venv: Path, commands: list[list[str]]) -> None:
        install.packages_ensure({"local", "dev"})
        commands.clear()

        install.packages_ensure({"local"})

        assert commands == []

    def test_pip_steps_in_where_the_quick_installer_fails(self, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[list[str]] = []

        def run(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
            ran.append(command)
            if "-m" not in command:
                raise install.InstallFailed("no such index")

        monkeypatch.setattr(install, "run", run)

        install.packages_ensure({"local"})

        assert ran[-1][1:4] == ["-m", "pip", "install"]

    def test_the_quick_installer_learns_pips_index(self, venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)

        assert install.uv_environment()["UV_DEFAULT_INDEX"] == "http://127.0.0.1:9/simple"


class TestWords:
    def test_a_failed_step_shows_the_end_of_what_it_wrote(self, venv: Path) -> None:
        with pytest.raises(
            install.InstallFailed, match=r"(?s)Set-up failed while trying:\n    no luck today\n  Whole log"
        ):
            install.run("trying", ["sh", "-c", "echo no luck today; exit 1"])

    def test_a_full_disk_is_called_that(self, venv: Path) -> None:
        with pytest.raises(install.InstallFailed, match=r"is full. Free some space there"):
            install.run("trying", ["sh", "-c", "echo 'error: No space left on device'; exit 1"])

    def test_runs_under_a_python_without_anything_of_ours(self, tmp_path: Path) -> None:
        copy = tmp_path / "apps/config/local/install.py"
        copy.parent.mkdir(parents=True)
        copy.write_text((REPOSITORY / "apps/config/local/install.py").read_text())

        done = subprocess.run(
            [sys.executable, "-I", "-S", str(copy)],
            capture_output=True,
            text=True,
            env={"PATH": os.defpath},
            check=False,
        )

        assert done.returncode == 1
        assert "Set-up failed" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr

    def test_make_says_so_where_there_is_no_python(self) -> None:
        done = subprocess.run(["make", "PYTHON=", "run"], cwd=REPOSITORY, capture_output=True, text=True, check=False)

        assert done.returncode != 0
        assert "Paceline needs Python 3.11 or newer, and none was found." in done.stdout
