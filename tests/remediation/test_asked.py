"""What a launcher's own words ask Slurm for."""

import pytest

from apps.remediation.selectors.asked import Asked, asked_in
from apps.runs.launcher import LauncherSetting


def submits(*command: str, script: str = "", **environment: str) -> Asked:
    return asked_in(LauncherSetting("SLURM", command=command, script=script, environment=environment))


class TestCommand:
    @pytest.mark.parametrize(
        ("words", "nodes"),
        [
            (("--nodes=62", "srun"), 62),
            (("--nodes=2-4", "srun"), 2),
            (("-N3", "srun"), 3),
            (("-N3-5", "srun"), 3),
            (("--nodes=1k", "srun"), 1024),
            (("--nodes=9", "-N3", "srun"), 3),
            (("--nodes=2,4-6:2", "srun"), None),
            (("srun", "--nodes=3", "-N3"), None),
            (("--no-kill", "--ntasks=8", "srun"), None),
        ],
    )
    def test_says_how_many_nodes(self, words: tuple[str, ...], nodes: int | None) -> None:
        assert submits(*words).nodes == nodes

    @pytest.mark.parametrize("word", ["--partition=train,spare", "-ptrain,spare"])
    def test_says_of_which_partitions(self, word: str) -> None:
        assert submits(word, "srun", "-p", "cpu").partitions == ("train", "spare")


class TestScript:
    @pytest.mark.parametrize("line", ["--nodes=3", "--nodes 3", "-N 3", "-N3", "-J a --nodes=3-5  # all but one"])
    def test_says_it_in_its_directives(self, line: str) -> None:
        script = f"#!/bin/bash\n# ours\n\n#SBATCH {line}\n#SBATCH -p 'train' --comment=\"a b\"\nsrun python train.py\n"

        assert submits(script=script) == Asked(3, ("train",))

    def test_says_nothing_after_its_first_command_or_in_a_comment(self) -> None:
        assert submits(script="#!/bin/sh\n##SBATCH -N 4\nsrun a\n#SBATCH -N 3\n") == Asked()

    def test_a_line_that_is_broken_is_read_as_far_as_it_goes(self) -> None:
        assert submits(script="#!/bin/sh\n#SBATCH -N 4 --comment='a\n").nodes == 4

    def test_gives_way_to_options_and_to_the_environment(self) -> None:
        script = "#!/bin/sh\n#SBATCH -N 4 -p cpu\n"

        assert submits("--nodes=3", script=script, SBATCH_PARTITION="train") == Asked(3, ("train",))
        assert submits("-pspare", script=script, SBATCH_PARTITION="train") == Asked(4, ("spare",))
