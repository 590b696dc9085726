"""Real processes: four ranks of one node, one of which sends for all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.procs import process_look

from tests.client.conftest import Node
from tests.client.server import RecordingServer, eventually
from tests.client.test_node_sender import HEALTHY, SICK, smi_of

MakeNode = Callable[..., Node]


def identities_are_sound(server: RecordingServer) -> bool:
    """True if no two different reports share an identity. The same one may come twice: its sender died before the answer."""
    bodies: dict[tuple[str, str, int], dict[str, Any]] = {}
    return all(
        bodies.setdefault((report["sender"], report["boot"], report["seq"]), report) == report
        for report in server.reports()
    )


class TestOneSender:
    def test_sends_every_step_of_every_rank_once(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)

        node.start_all(4, "--steps", "60")
        node.wait()

        cells = server.cells("step_s")
        steps = {rank: {step for one, step in cells if one == rank} for rank in range(4)}
        assert all(steps[rank] == set(range(node.step(rank) + 1)) for rank in range(4))
        assert identities_are_sound(server)
        assert len({report["boot"] for report in server.reports()}) <= 4

    def test_opens_the_attempt_by_key_and_ends_it_once(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)

        node.start_all(4, "--steps", "30")
        node.wait()

        assert server.attempts == {"launch-1": "att_1"}
        assert server.ends() == [{"reason": "FINISHED"}]
        assert not [event for event in server.part("events") if event["kind"] == "exit"]

    def test_says_where_each_rank_sits(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)

        node.start_all(4)
        eventually(lambda: {place["rank"] for place in server.part("placement")} == {0, 1, 2, 3})
        place = next(place for place in server.part("placement") if place["rank"] == 2)

        assert place == {"rank": 2, "node": "node-1", "local_rank": 2, "gpu": None, "coords": {"dp": 2}}
        assert {report["sender"] for report in server.reports()} == {"node-1"}

    def test_a_rank_that_knows_only_an_index_gets_its_gpu_s_name(
        self, server: RecordingServer, make_node: MakeNode, folder: Path
    ) -> None:
        smi_of(folder, [HEALTHY, SICK])
        node = make_node(server.url, PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")

        node.start(0)
        node.start(1, CUDA_VISIBLE_DEVICES="0,1")
        node.start(2, CUDA_VISIBLE_DEVICES="GPU-by-its-own-name")
        node.start(3, CUDA_VISIBLE_DEVICES="7")
        gpus = {0: HEALTHY["uuid"], 1: SICK["uuid"], 2: "GPU-by-its-own-name", 3: None}

        def newest() -> dict[int, str | None]:
            return {place["rank"]: place["gpu"] for place in server.part("placement")}

        assert eventually(lambda: newest() == gpus)

    def test_one_report_speaks_for_all_ranks(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)

        node.start_all(4)
        report = eventually(lambda: next((one for one in server.reports() if len(one.get("beats", [])) == 4), None))

        assert [beat["rank"] for beat in sorted(report["beats"], key=lambda beat: beat["rank"])] == [0, 1, 2, 3]

    def test_beats_go_on_while_a_rank_waits_in_a_socket(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)
        node.start_all(4, "--block-at", "10")
        eventually(lambda: all(node.step(rank) == 9 for rank in range(4)))

        before = len(server.part("beats"))
        eventually(lambda: len(server.part("beats")) > before + 40)
        newest = {beat["rank"]: beat for beat in server.part("beats")}

        assert {beat["phase"] for beat in newest.values()} == {"communication"}
        assert {beat["step"] for beat in newest.values()} == {9}
        assert min(beat["phase_age_s"] for beat in newest.values()) > 1


class TestTakeOver:
    def test_a_killed_sender_is_followed_and_its_exit_told(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)
        node.start_all(4)
        eventually(lambda: len(server.reports()) > 2)
        killed = node.sender()

        node.ranks[killed].send_signal(signal.SIGKILL)
        exits = eventually(lambda: [event for event in server.part("events") if event["kind"] == "exit"])
        survivors = [rank for rank in range(4) if rank != killed]
        at = {rank: node.step(rank) for rank in survivors}
        eventually(lambda: all(node.step(rank) > at[rank] + 30 for rank in survivors))
        node.end()

        assert [(event["rank"], event["signal"]) for event in exits] == [(killed, 9)]
        cells = server.cells("step_s")
        for rank in survivors:
            assert {step for one, step in cells if one == rank} == set(range(node.step(rank) + 1))
        assert identities_are_sound(server)
        assert len({report["boot"] for report in server.reports()}) >= 2

    def test_a_stopped_sender_is_followed_and_steps_down_when_it_wakes(
        self, server: RecordingServer, make_node: MakeNode
    ) -> None:
        node = make_node(server.url)
        node.start_all(4)
        eventually(lambda: len(server.reports()) > 2)
        stopped = node.sender()
        boot = server.reports()[-1]["boot"]

        node.ranks[stopped].send_signal(signal.SIGSTOP)
        eventually(lambda: server.reports()[-1]["boot"] != boot, because="nobody took over")
        notes = eventually(lambda: [event for event in server.part("events") if "stopped" in event.get("text", "")])
        node.ranks[stopped].send_signal(signal.SIGCONT)
        at = node.step(stopped)
        eventually(lambda: node.step(stopped) > at + 30)
        node.end()

        assert notes[0]["rank"] == stopped
        assert not [event for event in server.part("events") if event["kind"] == "exit"]
        cells = server.cells("step_s")
        for rank in range(4):
            assert {step for one, step in cells if one == rank} == set(range(node.step(rank) + 1))
        assert identities_are_sound(server)

    def test_a_sender_whose_interpreter_is_held_is_followed(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)
        node.start(0, "--hold-at", "100", "--hold-s", "12")
        assert node.sender() == 0
        for rank in (1, 2, 3):
            node.start(rank)
        first = eventually(server.reports)[0]["boot"]

        def heard() -> set[int]:
            """The ranks whose beats the sender after the first one tells."""
            others = [one for one in server.reports() if one["boot"] != first]
            return {beat["rank"] for one in others for beat in one.get("beats", [])}

        eventually(lambda: heard() >= {1, 2, 3}, because="nobody took over")
        fresh, held = heard(), node.step(0)
        eventually(lambda: node.step(0) > held + 20)
        node.end()

        assert held == 99
        assert fresh == {1, 2, 3}
        cells = server.cells("step_s")
        for rank in range(4):
            assert {step for one, step in cells if one == rank} == set(range(node.step(rank) + 1))

    def test_a_rank_that_joins_late_finds_the_sender(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)
        node.start_all(3)
        eventually(lambda: len(server.reports()) > 1)

        node.start(3)
        eventually(lambda: {beat["rank"] for beat in server.part("beats")} == {0, 1, 2, 3})

        assert {place["rank"] for place in server.part("placement")} == {0, 1, 2, 3}


class TestOddities:
    def test_two_processes_that_say_to_be_one_rank_are_told_apart(
        self, server: RecordingServer, make_node: MakeNode, folder: Path
    ) -> None:
        node = make_node(server.url, world_size=1)
        first = node.start(0)
        eventually(lambda: server.part("beats"))

        second = node.start(0, "--steps", "50")
        note = eventually(lambda: [event for event in server.part("events") if "both say" in event.get("text", "")])
        second.wait(30)
        before = len(server.part("beats"))
        eventually(lambda: len(server.part("beats")) > before + 3)
        said = node.stderr(0)
        first.kill()
        first.wait()

        assert f"processes {first.pid} and {second.pid} both say to be rank 0" in note[0]["text"]
        assert "both say to be rank 0" in said
        assert len(note) == 1

    def test_a_folder_too_deep_for_a_socket_gives_way(
        self, server: RecordingServer, make_node: MakeNode, folder: Path
    ) -> None:
        deep = folder / ("a-folder-with-a-very-long-name" * 4)
        node = make_node(server.url, PACELINE_LOCAL_DIR=str(deep))

        node.start_all(4)
        eventually(lambda: any(len(one.get("beats", [])) == 4 for one in server.reports()))

        assert not deep.exists()

    def test_ranks_that_cannot_meet_send_each_for_itself(
        self, server: RecordingServer, make_node: MakeNode, folder: Path
    ) -> None:
        (folder / "taken").write_text("this is no folder")
        node = make_node(server.url, PACELINE_LOCAL_DIR=str(folder / "taken"))

        node.start_all(3)
        eventually(lambda: {beat["rank"] for beat in server.part("beats")} == {0, 1, 2})
        node.end()

        assert {rank for rank, _ in server.cells("step_s")} == {0, 1, 2}
        assert all(len(one.get("beats", [])) <= 1 for one in server.reports())
        assert len({one["boot"] for one in server.reports()}) == 3

    def test_workers_of_a_dead_rank_do_not_hide_its_death(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)
        node.start_all(2)
        node.start(2, "--fork")
        eventually(lambda: {beat["rank"] for beat in server.part("beats")} == {0, 1, 2})
        eventually(lambda: (node.folder / "2.child").exists())

        node.ranks[2].send_signal(signal.SIGKILL)
        exits = eventually(lambda: [event for event in server.part("events") if event["kind"] == "exit"])
        child = int((node.folder / "2.child").read_text())
        alive = not process_look(child).gone
        os.kill(child, signal.SIGKILL)

        assert alive
        assert [(event["rank"], event["signal"]) for event in exits] == [(2, 9)]


class TestHeldInterpreter:
    def test_its_stacks_are_told_while_it_is_held_and_again_when_it_is_free(
        self, server: RecordingServer, make_node: MakeNode
    ) -> None:
        node = make_node(server.url, world_size=2, PACELINE_HELD_STACKS="1")
        node.start(0)
        assert node.sender() == 0

        node.start(1, "--hold-at", "20", "--hold-s", "9")
        stacks = eventually(lambda: [event for event in server.part("events") if event["kind"] == "stack"])
        held = node.step(1)
        eventually(lambda: node.step(1) > 40)
        both = eventually(
            lambda: len(found := [one for one in server.part("events") if one["kind"] == "stack"]) > 1 and found
        )
        node.end()

        assert held == 19
        assert stacks[0]["rank"] == both[1]["rank"] == 1
        assert "is held" in stacks[0]["text"]
        assert "rank.py" in stacks[0]["text"]
        assert "in main" in stacks[0]["text"]
        assert "was held until now" in both[1]["text"]


class TestExits:
    def exits(self, server: RecordingServer) -> list[dict[str, Any]]:
        return [event for event in server.part("events") if event["kind"] == "exit"]

    def test_a_killed_rank_is_told_by_its_sender(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url)
        node.start_all(4)
        eventually(lambda: {beat["rank"] for beat in server.part("beats")} == {0, 1, 2, 3})
        victim = next(rank for rank in range(4) if rank != node.sender())

        node.ranks[victim].send_signal(signal.SIGKILL)
        exits = eventually(lambda: self.exits(server))

        assert [(event["rank"], event["signal"], event["node"]) for event in exits] == [(victim, 9, "node-1")]

    def test_an_exception_is_told_with_its_trace(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url, world_size=1)

        node.start(0, "--raise-at", "5").wait(30)
        exits = self.exits(server)
        logs = [event for event in server.part("events") if event["kind"] == "log"]

        assert [(event["rank"], event["code"]) for event in exits] == [(0, 1)]
        assert "ValueError: the loss is on fire" in exits[0]["text"]
        assert 'raise ValueError("the loss is on fire")' in logs[0]["text"]
        assert "ValueError: the loss is on fire" in node.stderr(0)
        assert server.ends() == []

    def test_an_exit_status_is_told_as_the_kernel_knows_it(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url, world_size=2)
        node.start(0)
        eventually(lambda: len(server.reports()) > 1)

        node.start(1, "--steps", "10", "--end", "status-3")
        exits = eventually(lambda: self.exits(server))

        assert [(event["rank"], event.get("code")) for event in exits] == [(1, 3)]

    def test_an_end_without_finish_is_told_by_the_last_process_itself(
        self, server: RecordingServer, make_node: MakeNode
    ) -> None:
        node = make_node(server.url, world_size=1)

        node.start(0, "--steps", "10", "--end", "nothing").wait(30)

        assert [(event["code"], event["text"]) for event in self.exits(server)] == [
            (0, "rank 0: ended without finish()")
        ]
        assert server.ends() == []

    def test_ranks_that_end_one_after_the_other_without_finish_are_all_told_with_the_status_they_had(
        self, server: RecordingServer, make_node: MakeNode
    ) -> None:
        node = make_node(server.url, world_size=3)

        node.start_all(2, "--steps", "20", "--end", "nothing")
        node.start(2, "--steps", "60", "--end", "nothing")
        node.wait()

        assert sorted((event["rank"], event.get("code")) for event in self.exits(server)) == [(0, 0), (1, 0), (2, 0)]

    def test_the_last_process_tells_the_status_it_was_told_to_end_with(
        self, server: RecordingServer, make_node: MakeNode
    ) -> None:
        node = make_node(server.url, world_size=1)

        node.start(0, "--steps", "10", "--end", "status-3").wait(30)

        assert [event.get("code") for event in self.exits(server)] == [3]

    def test_a_rank_that_finished_says_so_in_its_last_beat(self, server: RecordingServer, make_node: MakeNode) -> None:
        node = make_node(server.url, world_size=4)

        node.start_all(3, "--steps", "10")
        node.wait()

        reports = sorted(server.reports(), key=lambda report: str(report["sent_at"]))  # the freshest is sent first
        last = {beat["rank"]: beat["phase"] for report in reports for beat in report.get("beats", [])}
        assert last == {0: "shutdown", 1: "shutdown", 2: "shutdown"}
        assert self.exits(server) == []
