"""The client against Paceline itself: real ranks, the real door, one fold; what was measured can be read back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tests.client.conftest import Node
from tests.client.server import eventually
from tests.client.test_check import check
from tests.client.test_node_sender import TestSender as NodeSender


class TestWithPaceline:
    def fold(self, attempt_id: int) -> None:
        from apps.telemetry.services.fold.attempt import inbox_fold

        while inbox_fold(attempt_id=attempt_id, now=datetime.now(UTC)).more:
            pass

    def attempt(self, slug: str) -> Any:
        from apps.common.errors import NotFound
        from apps.runs.selectors import attempts_of, run_by_code

        try:
            found = attempts_of(run_by_code(slug).id)
        except NotFound:
            return None
        return found[0] if found else None

    def test_every_rank_s_steps_can_be_read_back(
        self, live_site: Any, cluster: int, make_token: Callable[..., str], make_node: Callable[..., Node]
    ) -> None:
        from apps.telemetry.selectors.columns import columns_settled
        from apps.telemetry.selectors.facts import facts_of, nonfinite_of, refusals_of

        node = make_node(live_site.url, PACELINE_TOKEN=make_token("report", cluster_id=cluster))
        node.start_all(4, "--steps", "40", "--nan-at", "7")
        node.wait()
        attempt = self.attempt("a-run")
        self.fold(attempt.id)

        settled = columns_settled(attempt_id=attempt.id, after_step=None, limit=100, metrics=["step_s", "loss"])
        assert (attempt.key, attempt.world_size, attempt.reason) == ("launch-1", 4, "FINISHED")
        assert settled.steps.tolist() == list(range(40))
        assert settled.values["step_s"].shape == (4, 40)
        assert float(np.nanmin(settled.values["step_s"])) >= 0.02
        assert {(row.metric, row.step, row.rank) for row in nonfinite_of(attempt.id, after_step=None, limit=10)} == {
            ("loss", 7, rank) for rank in range(4)
        }
        assert facts_of(attempt.id, kinds=("EXIT", "exit")) == []
        assert refusals_of("ATTEMPT", attempt.id) == []

    def test_a_killed_rank_s_exit_is_there_before_anything_is_folded(
        self, live_site: Any, cluster: int, make_token: Callable[..., str], make_node: Callable[..., Node]
    ) -> None:
        from apps.telemetry.selectors.ranks import ranks_now

        node = make_node(live_site.url, PACELINE_TOKEN=make_token("report", cluster_id=cluster))
        node.start_all(4)
        eventually(lambda: self.attempt("a-run"))
        attempt = self.attempt("a-run")
        eventually(lambda: set(ranks_now(attempt.id, datetime.now(UTC)).ranks) == {0, 1, 2, 3})
        victim = next(rank for rank in range(4) if rank != node.sender())

        node.ranks[victim].send_signal(signal.SIGKILL)
        exited = eventually(lambda: ranks_now(attempt.id, datetime.now(UTC)).exited)

        assert set(exited) == {victim}
        assert exited[victim].signal == 9

    def test_the_node_s_sender_is_taken_and_the_check_leaves_no_node(
        self, live_site: Any, cluster: int, make_token: Callable[..., str], folder: Path
    ) -> None:
        token = make_token("report", cluster_id=cluster)
        status, text = check(folder, live_site.url, PACELINE_TOKEN=token, PACELINE_NODE="gpu-17")
        process = NodeSender().start(folder, live_site.url, PACELINE_TOKEN=token, PACELINE_NODE="gpu-18")
        eventually(lambda: process.poll() is None and self._node_known("gpu-18"))
        process.terminate()

        assert (status, process.wait(20)) == (0, 0), text
        assert "would be taken for gpu-17 of cluster north" in text
        assert not self._node_known("gpu-17")

    def _node_known(self, name: str) -> bool:
        from apps.common.errors import NotFound
        from apps.fleet.selectors import node_by_code

        try:
            return bool(node_by_code(name))
        except NotFound:
            return False
