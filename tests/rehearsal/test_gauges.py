"""Simulated gauges follow the load and say that they are simulated."""

import json
import time
from pathlib import Path

from apps.rehearsal.trainer.gauges import MODEL, LoadBoard, gauges_write, gpu_name, gpus_make


def test_a_gpu_warms_up_under_load_and_cools_down_without() -> None:
    gpu = gpus_make("n1", 1)[0]

    cold = gpu.read(0.0, 100.0)
    warming = [gpu.read(0.9, 100.0 + second)["temperature_c"] for second in range(1, 30)]
    idle = gpu.read(0.0, 500.0)

    assert cold["clock_reasons"] == 1
    assert warming == sorted(warming)
    assert warming[-1] > cold["temperature_c"] + 20
    assert idle["temperature_c"] == cold["temperature_c"]
    assert idle["power_w"] < 100


def test_names_stay_the_same_and_differ_between_machines() -> None:
    names = {gpu_name(node, local) for node in ("n1", "n2") for local in range(4)}

    assert len(names) == 8
    assert gpus_make("n1", 4)[2].name == gpu_name("n1", 2)


def test_a_rank_that_makes_no_steps_has_no_load() -> None:
    board = LoadBoard(2)
    board.put(1, 0.8)
    now = time.monotonic()

    assert board.load(1, now) == 0.8
    assert board.load(1, now + 60) == 0.0
    assert board.load(0, now) == 0.0


def test_the_file_says_that_nobody_measured_this(tmp_path: Path) -> None:
    gauges_write(tmp_path / "gpus.json", [gpu.read(0.5, 1.0) for gpu in gpus_make("n1", 2)])

    written = json.loads((tmp_path / "gpus.json").read_text())

    assert [gpu["model"] for gpu in written] == [MODEL, MODEL]
    assert "Simulated" in MODEL
