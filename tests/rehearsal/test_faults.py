"""Faults stay with the machine they were set on, and what happens once does not happen again after a restart."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from apps.rehearsal.trainer import faults
from apps.rehearsal.trainer.faults import KINDS, Fault, FaultRefused, FaultWatch, Place, Placement

PLACEMENT = Placement(
    attempt="try-1",
    pid=os.getpid(),
    resumed_from_step=0,
    ranks=tuple(Place(rank, "ab"[rank // 2], rank % 2, pid=1000 + rank) for rank in range(4)),
    start_ticks=faults.start_ticks(os.getpid()),
)


def fault(kind: str, **target: object) -> Fault:
    return faults.fault_make(PLACEMENT, kind=kind, **{"rank": None, "node": None, "value": None, **target})


def test_a_fault_of_a_rank_is_bound_to_its_machine_and_place_there() -> None:
    slow = fault("slow_rank", rank=3)

    assert (slow.node, slow.local_rank, slow.attempt) == ("b", 1, None)
    assert slow.concerns(node="b", local_rank=1, attempt="try-2")
    assert not slow.concerns(node="a", local_rank=1, attempt="try-2")
    assert not slow.concerns(node="b", local_rank=0, attempt="try-2")


def test_a_fault_of_a_node_concerns_all_its_ranks() -> None:
    slow = fault("slow_rank", node="b")

    assert slow.concerns(node="b", local_rank=0, attempt="x")
    assert slow.concerns(node="b", local_rank=1, attempt="x")
    assert not slow.concerns(node="a", local_rank=0, attempt="x")


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_what_happens_once_is_bound_to_the_attempt(kind: str) -> None:
    once = fault(kind, rank=0)

    assert once.concerns(node="a", local_rank=0, attempt="try-1")
    assert not once.concerns(node="a", local_rank=0, attempt="try-2")


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        ("earthquake", {}, "there is no fault"),
        ("slow_rank", {}, "needs a rank"),
        ("slow_rank", {"rank": 4}, "there is no rank 4"),
        ("slow_rank", {"rank": -1}, "there is no rank -1"),
        ("slow_rank", {"rank": 0, "value": 0.5}, "must be from"),
        ("slow_rank", {"rank": 0, "value": float("nan")}, "must be from"),
        ("lose_node", {"rank": 0}, "is set on a node"),
        ("lose_node", {"node": "c"}, "has no node"),
        ("lose_node", {}, "needs a node"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(kind: str, target: dict[str, object], words: str) -> None:
    with pytest.raises(FaultRefused, match=words):
        fault(kind, **target)


def test_without_a_target_the_store_and_the_collector_trouble_everybody() -> None:
    assert fault("slow_checkpoint").concerns(node="b", local_rank=1, attempt="x")
    assert fault("gc_pauses").value == KINDS["gc_pauses"].default


def test_a_watch_sees_only_what_concerns_it_and_every_change(tmp_path: Path) -> None:
    watch = FaultWatch(tmp_path, node="b", local_rank=1, attempt="try-1")
    slow, other = fault("slow_rank", rank=3), fault("slow_rank", rank=0)

    seen = [watch.look()]
    for written in ((slow, other), (slow, replace(slow, id="2", value=3.0)), ()):
        faults.faults_write(tmp_path, written)
        seen.append(watch.look())

    assert seen[0] == {}
    assert seen[1] == {"slow_rank": slow}
    assert seen[2]["slow_rank"].value == 3.0
    assert seen[3] == {}


def test_a_node_itself_hears_only_what_is_set_on_it(tmp_path: Path) -> None:
    faults.faults_write(tmp_path, (fault("crash", rank=2), fault("lose_node", node="b")))

    assert set(FaultWatch(tmp_path, node="b", local_rank=None, attempt="try-1").look()) == {"lose_node"}
    assert FaultWatch(tmp_path, node="b", local_rank=None, attempt="try-2").look() == {}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"faults": 3}', '{"faults": [{"kind": "hang"}]}', '{"faults": [1]}']
)
def test_a_broken_file_sets_no_fault(tmp_path: Path, content: str) -> None:
    (tmp_path / faults.FAULTS_FILE).write_text(content)

    assert faults.faults_read(tmp_path) == ()


def test_a_placement_is_read_back_while_its_program_lives(tmp_path: Path) -> None:
    faults.placement_write(tmp_path, PLACEMENT)
    assert faults.placement_read(tmp_path) == PLACEMENT

    pid_of_nobody = 2**22 + 1
    faults.placement_write(tmp_path, replace(PLACEMENT, pid=pid_of_nobody))
    assert faults.placement_read(tmp_path) is None
