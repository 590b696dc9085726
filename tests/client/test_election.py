"""Where a node's ranks meet: one name a generation, one owner a name, in a folder that is this user's alone."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from paceline.election import KEEP_S, MeetingPlace


def place_of(root: Path, *, launch: str = "launch-1", node: str = "n1") -> MeetingPlace:
    place = MeetingPlace(str(root), url="http://x", run="r", node=node, launch=launch)
    assert place.open()
    return place


class TestMeetingPlace:
    def test_one_of_many_gets_a_generation(self, folder: Path) -> None:
        won: list[socket.socket] = []
        start = threading.Barrier(16)

        def claim() -> None:
            place = place_of(folder)
            start.wait()
            sock = place.claim(3)
            if sock is not None:
                won.append(sock)

        threads = [threading.Thread(target=claim) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1
        assert place_of(folder).newest() == 3
        won[0].close()

    def test_who_is_found_listens_already(self, folder: Path) -> None:
        place = place_of(folder)
        listener = place.claim(1)
        caller = place.connect(place.newest())

        assert listener is not None
        assert caller is not None
        caller.close()
        listener.close()
        assert place.connect(1) is None  # dead, although its name is still there

    def test_launches_and_nodes_do_not_meet(self, folder: Path) -> None:
        names = {
            place_of(folder).folder,
            place_of(folder, launch="launch-2").folder,
            place_of(folder, node="n2").folder,
        }

        assert len(names) == 3
        assert place_of(folder).folder in names

    def test_a_newer_generation_takes_the_older_names_away(self, folder: Path) -> None:
        place = place_of(folder)
        first, second = place.claim(1), place.claim(2)

        assert first is not None
        assert second is not None
        assert os.listdir(place.folder) == ["s-2"]
        first.close()
        second.close()

    def test_a_folder_others_may_enter_is_not_used(self, folder: Path) -> None:
        place = place_of(folder)
        os.chmod(place.folder, 0o755)

        assert not place.open()

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
    def test_a_folder_of_somebody_else_is_not_used(self, folder: Path) -> None:
        place = place_of(folder)
        os.chown(place.folder, 12345, 12345)

        assert not place.open()

    def test_a_link_is_not_followed(self, folder: Path) -> None:
        place = place_of(folder / "own")
        (folder / "elsewhere").mkdir(mode=0o700)
        os.rmdir(place.folder)
        os.symlink(folder / "elsewhere", place.folder)

        assert not place.open()

    def test_what_killed_launches_left_goes_after_a_week(self, folder: Path) -> None:
        long_ago = os.stat(folder).st_mtime - 2 * KEEP_S
        dead, alive, fresh = (place_of(folder, launch=name) for name in ("dead", "alive", "fresh"))
        for place in (dead, alive, fresh):
            listener = place.claim(1)
            assert listener is not None
            if place is not alive:
                listener.close()
            else:
                living = listener
        for place in (dead, alive):
            os.utime(place.folder, (long_ago, long_ago))

        place_of(folder, launch="mine").tidy()

        assert [os.path.exists(place.folder) for place in (dead, alive, fresh)] == [False, True, True]
        living.close()
