"""The program takes its place from the launcher's environment."""

from pathlib import Path

import pytest

from apps.rehearsal.trainer.options import NODES, OptionsRefused, options_read


def test_nodes_are_those_given_without_those_excluded() -> None:
    environ = {"PACELINE_NODES": "n1,n2 n3", "PACELINE_EXCLUDE_NODES": "practice:n2"}

    options = options_read([], environ)

    assert options.nodes == ("n1", "n3")
    assert options.world_size == 8


def test_without_a_word_it_runs_on_the_practice_nodes_afresh(tmp_path: Path) -> None:
    options = options_read(["--directory", str(tmp_path)], {})

    assert options.nodes == NODES
    assert options.resume_step is None
    assert options.directory == tmp_path


def test_the_launcher_names_attempt_and_step() -> None:
    options = options_read([], {"PACELINE_ATTEMPT_KEY": "order:7", "PACELINE_RESUME_STEP": "120"})

    assert (options.attempt, options.resume_step) == ("order:7", 120)


def test_nothing_left_to_run_on_is_refused() -> None:
    with pytest.raises(OptionsRefused, match="every node is excluded"):
        options_read(["--nodes", "n1"], {"PACELINE_EXCLUDE_NODES": "n1"})
