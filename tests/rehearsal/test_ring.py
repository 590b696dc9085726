"""The ring gives every rank the same sum, survives any size, and tells a dead neighbour from a slow one."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apps.rehearsal.trainer.ring import Ring, RingBroken, RingTimeout, ring_join

KEY = b"0123456789abcdef"


def on_each_rank(folder: Path, size: int, work: Callable[[Ring], object], *, timeout_s: float = 30) -> list[object]:
    """Run `work` on a ring of `size` threads; return what each gave or raised, by rank."""
    answers: list[object] = [None] * size

    def run(rank: int) -> None:
        ring = ring_join(folder, rank=rank, size=size, key=KEY, timeout_s=timeout_s)
        try:
            answers[rank] = work(ring)
        except RingBroken as error:
            answers[rank] = error
        finally:
            ring.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return answers


@pytest.mark.parametrize(("size", "count"), [(1, 10), (2, 1001), (4, 16), (5, 3), (3, 2_000_003)])
def test_all_reduce_gives_every_rank_the_sum_to_the_same_bit(tmp_path: Path, size: int, count: int) -> None:
    parts = [np.random.default_rng(rank).standard_normal(count, dtype=np.float32) for rank in range(size)]

    def work(ring: Ring) -> np.ndarray:
        values = parts[ring.rank].copy()
        ring.all_reduce(values)
        return values

    sums = on_each_rank(tmp_path, size, work)

    np.testing.assert_allclose(sums[0], np.sum(parts, axis=0), rtol=1e-5, atol=1e-5)
    assert all(np.array_equal(sums[0], other) for other in sums)


def test_all_gather_gives_every_rank_all_blobs_by_rank(tmp_path: Path) -> None:
    gathered = on_each_rank(tmp_path, 4, lambda ring: ring.all_gather(bytes([ring.rank]) * 40))

    assert gathered == [[bytes([rank]) * 40 for rank in range(4)]] * 4


def test_many_collectives_in_a_row_do_not_mix(tmp_path: Path) -> None:
    def work(ring: Ring) -> list[float]:
        sums = []
        for turn in range(50):
            values = np.full(7, turn + ring.rank, np.float32)
            ring.all_reduce(values)
            sums.append(float(values[3]))
        return sums

    sums = on_each_rank(tmp_path, 3, work)

    assert sums == [[3.0 * turn + 3 for turn in range(50)]] * 3


def test_a_neighbour_that_leaves_breaks_the_ring(tmp_path: Path) -> None:
    def work(ring: Ring) -> None:
        if ring.rank == 1:
            return
        ring.all_reduce(np.ones(100, np.float32))

    answers = on_each_rank(tmp_path, 3, work)

    assert isinstance(answers[2], RingBroken)
    assert not isinstance(answers[2], RingTimeout)


def test_a_neighbour_that_says_nothing_is_waited_for_until_the_time_out(tmp_path: Path) -> None:
    waited = threading.Event()

    def work(ring: Ring) -> None:
        if ring.rank == 1:
            waited.wait(30)
            return
        try:
            ring.all_reduce(np.ones(100, np.float32))
        finally:
            waited.set()

    answers = on_each_rank(tmp_path, 2, work, timeout_s=0.2)

    assert isinstance(answers[0], RingTimeout)


def test_a_stranger_at_the_port_is_sent_away(tmp_path: Path) -> None:
    first: list[Ring] = []

    def join_first() -> None:
        first.append(ring_join(tmp_path, rank=0, size=2, key=KEY, timeout_s=10))

    joining = threading.Thread(target=join_first, daemon=True)
    joining.start()
    port_file = tmp_path / "0.port"
    while not port_file.exists():
        joining.join(0.01)
    with socket.create_connection(("127.0.0.1", int(port_file.read_text()))) as stranger:
        stranger.sendall(b"x" * 20)
        second = ring_join(tmp_path, rank=1, size=2, key=KEY, timeout_s=10)
    joining.join(30)

    assert len(first) == 1
    second.close()
    first[0].close()


def test_a_ring_whose_members_do_not_come_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(RingTimeout, match="rank 1 did not come"):
        ring_join(tmp_path, rank=0, size=2, key=KEY, timeout_s=1, join_timeout_s=0.1)
