"""Worlds with a known truth: one definition for tests, rehearsal and evaluation."""

from collections.abc import Mapping
from types import MappingProxyType

from apps.engine.detection import Launched, Phase, Subject, SubjectKind
from apps.engine.worlds.story import BEGAN_AT, Story, tell
from apps.engine.worlds.windows import clock_window, columns_window, placement_of, settled_steps, windows
from apps.engine.worlds.world import Fault, FaultKind, Truth, World

__all__ = [
    "BEGAN_AT",
    "WORLDS",
    "Fault",
    "FaultKind",
    "Story",
    "Truth",
    "World",
    "clock_window",
    "columns_window",
    "placement_of",
    "settled_steps",
    "tell",
    "windows",
]


def _rank(rank: int) -> Subject:
    return Subject(SubjectKind.RANK, rank=rank, node=f"node-{rank // 4:02d}")


_ALL = (
    World("steady_run", "Nothing is wrong."),
    World(
        "one_hot_gpu",
        "Rank 5 computes 15 % longer from step 200 on.",
        faults=(Fault(FaultKind.SLOW, 200, (5,), factor=1.15),),
        truths=(Truth("compute_straggler", _rank(5), 200),),
    ),
    World(
        "slow_node",
        "All ranks of node-02 compute 20 % longer from step 150 on.",
        faults=(Fault(FaultKind.SLOW, 150, (8, 9, 10, 11), factor=1.20),),
        truths=(Truth("compute_straggler", Subject(SubjectKind.NODE, node="node-02"), 150),),
    ),
    World(
        "slow_spell",
        "Rank 3 computes 30 % longer for 60 steps, then recovers.",
        faults=(Fault(FaultKind.SLOW, 150, (3,), to_step=210, factor=1.30),),
        truths=(Truth("compute_straggler", _rank(3), 150),),
    ),
    World(
        "hang_at_step_412",
        "Rank 6 never leaves its input in step 412; the others wait in the collective.",
        faults=(Fault(FaultKind.HANG, 412, (6,), phase=Phase.DATA),),
        truths=(Truth("hang", _rank(6), 412),),
    ),
    World(
        "crash_at",
        "Rank 9 ends with code 1 in step 120; the launcher stops the others 20 s later.",
        faults=(Fault(FaultKind.EXIT, 120, (9,), code=1),),
        truths=(Truth("rank_lost", _rank(9), 120),),
    ),
    World(
        "lost_node",
        "node-03 is gone in step 130, with everything on it.",
        faults=(Fault(FaultKind.SILENT, 130, (12, 13, 14, 15)),),
        truths=(
            Truth("rank_lost", Subject(SubjectKind.NODE, node="node-03"), 130),
            Truth("no_telemetry", Subject(SubjectKind.NODE, node="node-03"), 130),
        ),
        also=("hang",),
    ),
    World(
        "unheard_node",
        "node-01 trains on, but its sender does not get through from step 140 on.",
        faults=(Fault(FaultKind.UNHEARD, 140, (4, 5, 6, 7)),),
        truths=(Truth("no_telemetry", Subject(SubjectKind.NODE, node="node-01"), 140),),
    ),
    World(
        "nan_rank",
        "Rank 6 has an infinite gradient norm in step 180; everybody's loss is NaN from the next step on.",
        faults=(Fault(FaultKind.NONFINITE, 180, (6,)),),
        truths=(Truth("numeric_fault", _rank(6), 180),),
    ),
    World(
        "stale_checkpoint",
        "Every save from step 199 on fails while training goes on.",
        faults=(Fault(FaultKind.UNSAVED, 199),),
        truths=(Truth("checkpoint_stale", Subject(SubjectKind.RUN), 249),),
    ),
    World(
        "whole_stage_slow",
        "The last of four stages has 63 % more work: the partition, not a machine.",
        stages=4,
        faults=(Fault(FaultKind.SLOW, 0, (12, 13, 14, 15), factor=1.63),),
    ),
    World(
        "moving_rank",
        "Each step another rank takes 40 % longer: the data, not a machine.",
        faults=(Fault(FaultKind.MOVING, 0, factor=1.40),),
    ),
    World(
        "gc_pauses",
        "From step 100 on now and then a rank collects garbage for 0.6 s, each by itself.",
        faults=(Fault(FaultKind.PAUSES, 100, chance=0.05, pause_s=0.6),),
        truths=(Truth("gc_pause", Subject(SubjectKind.RUN), 100),),
    ),
    World(
        "gc_of_one_rank",
        "From step 100 on rank 6 alone collects garbage for 0.6 s in two steps of five: its program, not its machine.",
        faults=(Fault(FaultKind.PAUSES, 100, (6,), chance=0.4, pause_s=0.6),),
        truths=(Truth("gc_pause", _rank(6), 100),),
    ),
    World(
        "untold_pauses",
        "Ranks pause as in gc_pauses, but nobody reports collections: nobody's hardware is to be blamed.",
        faults=(Fault(FaultKind.PAUSES, 0, chance=0.02, pause_s=0.6),),
        tells_gc=False,
    ),
    World(
        "planned_collections",
        "All ranks collect together every 100 steps: the remedy, not the fault.",
        faults=(Fault(FaultKind.PLANNED, 50, pause_s=0.6, every=100),),
    ),
    World(
        "queueing_store",
        "From the save after step 249 on the shards wait for the store, longer each time.",
        save_every=50,
        faults=(Fault(FaultKind.QUEUED, 249, pause_s=180.0),),
        truths=(Truth("checkpoint_queue", Subject(SubjectKind.RUN), 250),),
    ),
    World(
        "queueing_store_untold",
        "The same, but ranks tell only how long their shard took: the spread over ranks stands for the queue.",
        save_every=50,
        tells_queue=False,
        faults=(Fault(FaultKind.QUEUED, 249, pause_s=180.0),),
        truths=(Truth("checkpoint_queue", Subject(SubjectKind.RUN), 250),),
    ),
    World(
        "failing_at_once",
        "Two attempts of 12 s failed before a step, both with node-02, their other nodes were others; the third one works.",
        earlier=(
            Launched(
                1, -1300.0, ended_at=-1288.0, outcome="CRASHED", nodes=("node-02", "node-10", "node-11", "node-12")
            ),
            Launched(2, -650.0, ended_at=-638.0, outcome="CRASHED", nodes=("node-02", "node-13", "node-14", "node-15")),
        ),
        truths=(Truth("restart_loop", Subject(SubjectKind.NODE, node="node-02"), 0),),
    ),
)

WORLDS: Mapping[str, World] = MappingProxyType({world.name: world for world in _ALL})
"""Every named world, by its name."""
