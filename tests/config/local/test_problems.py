from __future__ import annotations

from pathlib import Path

from apps.config.local.problems import last_words


class TestLastWords:
    def test_are_the_sentence_of_a_command_and_not_its_error_class(self, tmp_path: Path) -> None:
        log = tmp_path / "practice.log"
        log.write_text("a line before\nCommandError: another restart of this run is under way (RESTART, RUNNING)\n\n")

        assert last_words(log) == "another restart of this run is under way (RESTART, RUNNING)"
        assert last_words(log, lines=2).startswith("a line before | another restart")

    def test_of_an_absent_log_are_none(self, tmp_path: Path) -> None:
        assert last_words(tmp_path / "absent.log") == ""
