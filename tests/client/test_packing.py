"""Numbers on their way: float32 patterns, batches, rectangles."""

from __future__ import annotations

import base64
import math
import struct
from array import array

import pytest
from paceline.batches import batch_of
from paceline.floats import ABSENT, PRODUCED_NAN, base64_of, bits_of
from paceline.packing import steps_packed, utc_text
from paceline.wire import Batch, Link, LinkClosed, batch_decode, batch_encode

from tests.client.server import cells_of


def batch(steps: list[int], **metrics: list[float | None]) -> Batch:
    """A batch of one rank; None is absent."""
    bits = array("I")
    for values in metrics.values():
        bits.extend(bits_of(values))
    return Batch(1, tuple(metrics), array("q", steps), array("d", [float(step) for step in steps]), bits, [], [])


class TestFloats:
    def test_absent_and_produced_are_two_patterns(self) -> None:
        values = [1.5, None, math.nan, -math.inf, 1e300, -0.0]

        assert list(bits_of(values)) == [0x3FC00000, ABSENT, PRODUCED_NAN, 0xFF800000, 0x7F800000, 0x80000000]

    @pytest.mark.parametrize("values", [[0.1, 2.0, 3.5], [0.1, math.nan], [math.inf, -math.inf], []])
    def test_the_quick_way_says_the_same_as_the_slow_one(self, values: list[float]) -> None:
        assert bits_of(values) == bits_of([*values, None])[:-1]

    def test_a_nan_of_any_payload_is_the_produced_one(self) -> None:
        strange = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]

        assert list(bits_of([strange])) == [PRODUCED_NAN]

    def test_the_wire_is_little_endian(self) -> None:
        assert base64.b64decode(base64_of(array("I", [0x3F800000, ABSENT]))) == bytes.fromhex("0000803f 0000c07f")


class TestBatches:
    NAMES = ("step_s", "gc_s", "compute_s", "data_s", "loss")

    def test_rows_of_one_step_are_one_and_the_later_value_wins(self) -> None:
        rows = [(1, 10.0, [0.5, 0.0]), (1, 11.0, [None, None, None, None, 2.0]), (2, 12.0, [0.7, 0.0])]

        made = batch_of(3, rows, list(self.NAMES), checkpoints=[], events=[])

        assert made.names == ("step_s", "gc_s", "loss")
        assert list(made.steps) == [1, 2]
        assert list(made.ended_at) == [10.0, 12.0]
        assert list(made.bits[4:]) == [*bits_of([2.0]), ABSENT]

    def test_a_batch_survives_the_socket(self) -> None:
        rows = [(1, 10.0, [0.5, math.nan]), (5, 11.0, [0.25, None])]
        made = batch_of(3, rows, list(self.NAMES), checkpoints=[{"step": 1}], events=[{"text": "ü"}])

        assert batch_decode(batch_encode(made)) == made

    @pytest.mark.parametrize("cut", [0, 5, 20, -1])
    def test_what_is_no_batch_is_refused(self, cut: int) -> None:
        whole = batch_encode(batch_of(3, [(1, 10.0, [0.5])], list(self.NAMES), checkpoints=[], events=[]))

        with pytest.raises(LinkClosed):
            batch_decode(whole[:cut])

    def test_a_stranger_on_the_socket_is_shown_the_door(self) -> None:
        import socket

        mine, theirs = socket.socketpair()
        link = Link(mine)
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)

        with pytest.raises(LinkClosed):
            link.receive()
        link.close()
        theirs.close()


class TestRectangles:
    def test_ranks_with_the_same_steps_share_one(self) -> None:
        packed = steps_packed(
            {
                1: [batch([5, 6], step_s=[1.0, 2.0], loss=[None, 9.0])],
                0: [batch([5], step_s=[3.0]), batch([6], step_s=[4.0])],
            }
        )

        assert [(one["ranks"], one["steps"], one["names"]) for one in packed] == [([0, 1], [5, 6], ["step_s", "loss"])]
        assert packed[0]["ended_at"] == [utc_text(5.0), utc_text(6.0)]
        assert cells_of({"steps": packed[0]}, "step_s") == {
            (0, 5): 0x40400000, (0, 6): 0x40800000, (1, 5): 0x3F800000, (1, 6): 0x40000000,
        }  # fmt: skip
        assert cells_of({"steps": packed[0]}, "loss") == {(1, 6): 0x41100000}

    def test_a_rank_one_step_behind_leaves_an_absent_cell(self) -> None:
        packed = steps_packed({0: [batch([5, 6, 7], step_s=[1.0] * 3)], 1: [batch([5, 6], step_s=[1.0] * 2)]})

        assert len(packed) == 1
        assert (1, 7) not in cells_of({"steps": packed[0]}, "step_s")

    def test_a_rank_far_behind_gets_a_rectangle_of_its_own(self) -> None:
        packed = steps_packed(
            {
                0: [batch(list(range(100, 120)), step_s=[1.0] * 20)],
                1: [batch(list(range(100, 120)), step_s=[1.0] * 20)],
                2: [batch([3], step_s=[9.0])],
            }
        )

        assert sorted((one["ranks"], len(one["steps"])) for one in packed) == [([0, 1], 20), ([2], 1)]

    def test_a_late_value_does_not_erase_its_step(self) -> None:
        packed = steps_packed(
            {0: [batch([1, 2], step_s=[1.0, 1.0]), batch([1, 3], loss=[7.0, 8.0], step_s=[None, 1.0])]}
        )

        assert cells_of({"steps": packed[0]}, "loss") == {(0, 1): 0x40E00000, (0, 3): 0x41000000}
        assert set(cells_of({"steps": packed[0]}, "step_s")) == {(0, 1), (0, 2), (0, 3)}

    def test_steps_with_gaps_fall_into_place(self) -> None:
        packed = steps_packed({0: [batch([1, 9], step_s=[1.0, 2.0])], 1: [batch([1, 5, 9], step_s=[3.0, 4.0, 5.0])]})

        assert packed[0]["steps"] == [1, 5, 9]
        assert cells_of({"steps": packed[0]}, "step_s")[0, 9] == 0x40000000

    def test_nothing_measured_makes_no_steps(self) -> None:
        assert steps_packed({0: [batch([])]}) == []
