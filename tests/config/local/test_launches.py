"""Runs that go on after a stop are found by their wrapper, whichever supervisor saw their start."""

import json
import signal
import sys
from pathlib import Path

from apps.config.local.launches import Launch, launches_alive, practice_alive
from tests.marked import Marked, eventually

RUN = "import sys, time; time.sleep(1000)"


class TestLaunches:
    def test_lists_a_run_of_this_data_folder_by_its_programs_pid(self, marked: Marked, tmp_path: Path) -> None:
        launch = tmp_path / "data/launches/1"
        launch.mkdir(parents=True)
        (tmp_path / "wrapper.py").write_text(RUN)
        program = marked.start("sleep", "1003")
        (launch / "started.json").write_text(json.dumps({"program_pid": program.pid}))

        wrapper = marked.start(sys.executable, str(tmp_path / "wrapper.py"), str(launch), "1")

        expected = [Launch(program.pid, "sleep 1003", wrapper.pid)]
        assert eventually(lambda: launches_alive(tmp_path / "data") == expected)

    def test_leaves_out_runs_of_another_folder_and_other_programs(self, marked: Marked, tmp_path: Path) -> None:
        (tmp_path / "wrapper.py").write_text(RUN)
        other = marked.start(sys.executable, str(tmp_path / "wrapper.py"), str(tmp_path / "elsewhere/1"), "1")
        marked.start("sleep", "1003", str(tmp_path / "data"))

        assert eventually(lambda: launches_alive(tmp_path / "elsewhere"))
        assert [launch.pid for launch in launches_alive(tmp_path / "elsewhere")] == [other.pid]
        assert launches_alive(tmp_path / "data") == []

    def test_a_wrapper_that_has_not_written_yet_is_listed_itself(self, marked: Marked, tmp_path: Path) -> None:
        (tmp_path / "wrapper.py").write_text(RUN)

        wrapper = marked.start(sys.executable, str(tmp_path / "wrapper.py"), str(tmp_path / "data/1"), "1")

        assert eventually(lambda: [launch.pid for launch in launches_alive(tmp_path / "data")] == [wrapper.pid])

    def test_the_practice_run_is_known_by_its_folder_and_stops_through_its_wrapper(
        self, marked: Marked, tmp_path: Path
    ) -> None:
        root = tmp_path / "data"
        (root / "launches/1").mkdir(parents=True)
        (tmp_path / "wrapper.py").write_text(RUN)
        program = marked.start("sh", "-c", "exec sleep 1003", str(root / "practice"))
        trainer = marked.start(sys.executable, "-c", RUN, "--directory", str(root / "practice"))
        (root / "launches/1/started.json").write_text(json.dumps({"program_pid": trainer.pid}))
        wrapper = marked.start(sys.executable, str(tmp_path / "wrapper.py"), str(root / "launches/1"), "1")
        assert eventually(lambda: [launch.pid for launch in practice_alive(root)] == [trainer.pid])

        practice_alive(root)[0].stop()

        assert wrapper.wait(30) == -signal.SIGTERM
        assert practice_alive(root) == []
        assert program.poll() is None
