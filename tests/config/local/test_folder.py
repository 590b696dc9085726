"""The data folder: one supervisor at a time, one layout, a private place for sockets."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.config.local.folder import (
    LONGEST_SOCKET_NAME,
    SOCKET_PATH_BYTES,
    DataFolder,
    folder_claim,
    folder_open,
    replace_file,
)
from apps.config.local.problems import DiskFull, FolderInUse, FolderOfAnotherVersion, FolderUnusable
from tests.marked import Marked, read_until

HOLD = (
    "import sys, time; from pathlib import Path; from apps.config.local.folder import folder_claim\n"
    "with folder_claim(Path(sys.argv[1]), address='http://127.0.0.1:8000'): print('held', flush=True); time.sleep(1000)"
)

ROOT = os.geteuid() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


class TestClaim:
    def test_a_second_instance_is_told_who_runs_where(self, marked: Marked, tmp_path: Path) -> None:
        first = marked.start(sys.executable, "-c", HOLD, str(tmp_path))
        read_until(first, "held")

        with pytest.raises(FolderInUse) as caught, folder_claim(tmp_path, address="http://127.0.0.1:8001"):
            pass

        assert f"Paceline already runs on {tmp_path} (pid {first.pid}, http://127.0.0.1:8000)." in caught.value.message

    def test_a_killed_instance_frees_the_folder_at_once(self, marked: Marked, tmp_path: Path) -> None:
        first = marked.start(sys.executable, "-c", HOLD, str(tmp_path))
        read_until(first, "held")

        first.kill()
        first.wait()

        with folder_claim(tmp_path, address="http://127.0.0.1:8001"):
            assert (tmp_path / "lock").read_text().startswith(f"{os.getpid()} ")


class TestOpen:
    def test_a_fresh_folder_is_made_private(self, tmp_path: Path) -> None:
        folder = folder_open(tmp_path / "new")

        assert folder.run.stat().st_mode & 0o777 == 0o700
        assert folder.logs.stat().st_mode & 0o777 == 0o700
        assert folder.root.stat().st_mode & 0o066 == 0

    def test_the_same_folder_opens_again(self, tmp_path: Path) -> None:
        first = folder_open(tmp_path / "new")

        assert folder_open(tmp_path / "new") == first

    def test_refuses_a_folder_of_another_layout(self, tmp_path: Path) -> None:
        folder_open(tmp_path)
        (tmp_path / "folder.json").write_text(json.dumps({"layout": 99}))

        with pytest.raises(
            FolderOfAnotherVersion, match=r"another version of Paceline \(layout 99, this one reads 1\)"
        ):
            folder_open(tmp_path)

    def test_refuses_a_folder_whose_stamp_cannot_be_read(self, tmp_path: Path) -> None:
        folder_open(tmp_path)
        (tmp_path / "folder.json").write_text("{")

        with pytest.raises(FolderOfAnotherVersion, match="layout unknown"):
            folder_open(tmp_path)

    def test_refuses_a_folder_with_somebody_elses_files(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()

        with pytest.raises(FolderUnusable, match=r"not a data folder of Paceline \(it holds thesis.tex\)"):
            folder_open(tmp_path)

    def test_takes_a_folder_that_holds_only_the_secret_key(self, tmp_path: Path) -> None:
        (tmp_path / "secret_key").touch()

        assert folder_open(tmp_path).stamp.exists()

    def test_says_that_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()

        with pytest.raises(FolderUnusable, match="cannot be used: Not a directory"):
            folder_open(tmp_path / "file" / "data")

    def test_says_that_the_disk_is_full_before_anything_is_half_made(self, small_disk: Path) -> None:
        with pytest.raises(DiskFull, match=f"The disk that holds {small_disk} is full. Free some space there"):
            folder_open(small_disk)

    def test_a_full_disk_leaves_the_old_file_whole(self, small_disk: Path) -> None:
        replace_file(small_disk / "env", "old", mode=0o600)

        with pytest.raises(OSError, match="No space left on device"):
            replace_file(small_disk / "env", "x" * 200_000, mode=0o600)

        assert (small_disk / "env").read_text() == "old"

    def test_says_that_the_disk_is_full_when_not_even_the_lock_can_be_written(self, small_disk: Path) -> None:
        (small_disk / "filler").write_bytes(b"x" * 64 * 1024)

        with pytest.raises(DiskFull), folder_claim(small_disk, address="http://127.0.0.1:8000"):
            pass


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder as short as a runtime folder is; pytest's own are long in a parallel session."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        yield Path(folder)


class TestSockets:
    def test_sockets_stay_in_the_folder_where_the_path_is_short(self, tmp_path: Path) -> None:
        assert DataFolder(Path("/srv/paceline")).run == Path("/srv/paceline/run")

    def test_a_long_path_gets_a_short_private_place_that_is_always_the_same(
        self, short_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
        deep = DataFolder(Path("/data") / ("n" * 60) / ("m" * 60))
        other = DataFolder(Path("/data") / ("n" * 60) / ("k" * 60))

        assert deep.run.parent == short_path
        assert deep.run == DataFolder(deep.root).run != other.run
        assert len(os.fsencode(f"{deep.run}{LONGEST_SOCKET_NAME}")) <= SOCKET_PATH_BYTES

    def test_never_uses_a_place_that_another_user_prepared(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "shared"))
        (tmp_path / "shared").mkdir()
        root = tmp_path / ("n" * 110)
        DataFolder(root).run.symlink_to(tmp_path)

        with pytest.raises(FolderUnusable, match="belongs to another user"):
            folder_open(root)
