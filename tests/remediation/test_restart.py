"""Restarts by the local launcher, from the click to the read-back, with real processes."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.accounts.selectors import tokens_all
from apps.common.ids import id_write
from apps.fleet.selectors import exclusions_of, node_by_code
from apps.fleet.services import nodes_ensure
from apps.incidents.models import Incident
from apps.journal.choices import StreamKey
from apps.journal.selectors import events_latest
from apps.remediation import launchers, selectors, services, tasks
from apps.remediation.launchers import wrapper
from apps.remediation.launchers.processes import process_name, process_named, process_own
from apps.remediation.models import Action, Launch, Order
from apps.remediation.selectors import Outcome, launch_of_attempt, launches_alive
from apps.runs.selectors import attempt_by_id, attempts_of, run_by_id
from apps.runs.services import (
    CheckpointFact,
    attempt_end,
    attempt_open,
    checkpoint_note,
    checkpoint_trust_set,
    run_put,
    status_update,
)
from apps.telemetry.models import DoorBeat
from tests.remediation.conftest import alive, is_watched, wait_for


@pytest.fixture
def running(local_run: Any, ask: Callable[..., Any], work: Callable[..., Any], reports: Callable[..., None]) -> Any:
    """A run whose first attempt was started by Paceline and reports."""
    action = ask("RESTART_RUN", local_run)
    work(action.id, until=is_watched)
    reports(local_run)
    work(action.id)
    return run_by_id(local_run.id)


def saved(run: Any, step: int) -> None:
    now = datetime.now(UTC)
    fact = CheckpointFact(step=step, state="SAVED", happened_at=now, duration_s=4.0, blocking_s=1.0)
    checkpoint_note(attempt_id=run.attempt_id, fact=fact, source="SENDER", actor_name="n", now=now)


def incident_open(run: Any, cause: str, *, number: int = 1) -> int:
    """An open incident about the run; gives its row."""
    now = datetime.now(UTC)
    seen = {"began_at": now, "found_at": now, "first_seen_at": now, "last_seen_at": now}
    row = Incident.objects.create(
        number=number,
        state="OPEN",
        run_id=run.id,
        cluster_id=run.cluster_id,
        cause=cause,
        place_key=f"RANK:{number}",
        **seen,
    )
    return int(row.pk)


class TestStart:
    def test_a_run_without_an_attempt_is_started(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any], reports: Callable[..., None]
    ) -> None:
        action = ask("RESTART_RUN", local_run)

        watched = work(action.id, until=is_watched)
        state_meanwhile = run_by_id(local_run.id).state
        reports(local_run)
        done = work(action.id)

        launch = launch_of_attempt(watched.attempt_id)
        attempt = attempt_by_id(watched.attempt_id)
        assert launch is not None
        assert alive(launch.pid or 0)
        assert (attempt.key, attempt.opened_by) == (launch.key, "operator")
        assert state_meanwhile == "STARTING"
        assert run_by_id(local_run.id).state == "RUNNING"
        assert done.state == "SUCCEEDED"
        assert [row.name for row in done.milestones] == ["requested", "running", "started", "reports", "succeeded"]

    def test_a_program_that_ends_before_its_first_step_is_said_with_its_last_words(
        self, make_run: Callable[..., Any], launches: Path, program: Callable[..., list[str]], ask: Any, work: Any
    ) -> None:
        command = program("import sys; sys.exit('no module named torch')")
        run = make_run(launcher={"kind": "LOCAL", "command": command})

        done = work(ask("RESTART_RUN", run).id)

        assert done.state == "FAILED"
        assert done.outcome == (
            "Attempt 1 ended with status 1 before its first step. Its last words: no module named torch"
        )
        assert attempt_by_id(done.attempt_id).reason == "CRASHED"

    def test_what_the_kernel_has_to_do_with_an_end_is_said(
        self, local_run: Any, ask: Any, work: Any, launches: Path
    ) -> None:
        action = work(ask("RESTART_RUN", local_run).id, until=is_watched)
        launch = launch_of_attempt(action.attempt_id)
        assert launch is not None
        os.kill(launch.pid or 0, signal.SIGSTOP)  # its wrapper must not write how it ended before this test does
        ended = {"status": None, "signal": 9, "ended_at": 1.0, "asked": False, "killed": False}
        note = "the kernel ended it for want of memory"
        (Path(launch.directory) / "exit.json").write_text(json.dumps({**ended, "oom": note}))

        done = work(action.id)

        assert done.outcome == f"Attempt 1 was killed by SIGKILL ({note}) before its first step. Its last words: up"

    def test_a_program_that_cannot_be_started_leaves_no_open_attempt(
        self, make_run: Callable[..., Any], launches: Path, ask: Any, work: Any
    ) -> None:
        run = make_run(launcher={"kind": "LOCAL", "command": ["/no/such/program"]})

        done = work(ask("RESTART_RUN", run).id)

        assert (done.state, done.orders[0].state) == ("REFUSED", "REFUSED")
        assert "/no/such/program" in done.outcome
        assert [(row.state, row.reason) for row in attempts_of(run.id)] == [("ENDED", "CANCELLED")]
        assert all(token.revoked_at for token in tokens_all())

    def test_a_program_that_stays_silent_is_said_to_and_can_be_left_alone(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = work(ask("RESTART_RUN", local_run).id, until=is_watched)

        services.action_watch(action_id=action.id, now=datetime.now(UTC) + timedelta(hours=1))

        row = selectors.action_by_id(action.id)
        assert row.state == "FAILED"
        assert "has not reported" in row.outcome
        assert run_by_id(local_run.id).attempt_state == "OPEN"


class TestRestart:
    def test_exclude_and_restart_is_one_action(
        self,
        running: Any,
        ask: Callable[..., Any],
        work: Callable[..., Any],
        reports: Callable[..., None],
        now: datetime,
    ) -> None:
        nodes_ensure(cluster_id=running.cluster_id, names=["trn001", "trn002", "trn003"], now=now)
        saved(running, 40)
        old = launch_of_attempt(running.attempt_id)
        assert old is not None
        expected = {"attempt": running.attempt_id, "state": "RUNNING"}
        action = ask("RESTART_RUN", running, options={"exclude_nodes": ["trn002"]}, expected_state=expected)

        work(action.id, until=is_watched)
        reports(running, first_step=41)
        done = work(action.id)

        new = launch_of_attempt(done.attempt_id)
        assert new is not None
        environment = Path(f"/proc/{wait_program(new)}/environ").read_bytes().split(b"\0")
        first, second = reversed(attempts_of(running.id))
        assert done.state == "SUCCEEDED"
        assert done.outcome == "Attempt 2 runs. It went on from step 40, as its first report says."
        assert not alive(old.pid or 0)
        assert (first.reason, first.authority) == ("PLANNED", "ORDER")
        assert (second.state, second.resumed_from_step) == ("OPEN", 40)
        assert b"PACELINE_NODES=trn001,trn003" in environment
        assert b"PACELINE_EXCLUDE_NODES=trn002" in environment
        assert b"PACELINE_RESUME_STEP=40" in environment
        line = exclusions_of(node_id=node_by_code("trn002").id)[0]
        assert (line.action_id, line.by_name, line.ended_at) == (action.id, "operator", None)

    def test_a_step_that_was_not_obeyed_is_said(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any], reports: Callable[..., None]
    ) -> None:
        saved(running, 40)
        opened = incident_open(running, "hang")
        action = ask("RESTART_RUN", running, options={"from_step": 20, "confirm": running.slug})

        work(action.id, until=is_watched)
        reports(running, first_step=1)
        done = work(action.id)

        assert done.resume_step == 20
        assert done.outcome == (
            "Attempt 2 runs. Attention: it went on from step 0, not from 20 as it was told. Nothing counts as mitigated."
        )
        assert "wrong_step" in [row.name for row in done.milestones]
        assert Incident.objects.get(pk=opened).state == "OPEN"

    def test_going_on_from_a_suspect_save_does_not_mitigate_what_may_be_in_it(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any], reports: Callable[..., None]
    ) -> None:
        saved(running, 40)
        checkpoint_trust_set(run_id=running.id, after_step=30, attempt_id=running.attempt_id)
        nan, hang = incident_open(running, "numeric_fault"), incident_open(running, "hang", number=2)
        action = ask("RESTART_RUN", running, options={"from_step": 40})

        work(action.id, until=is_watched)
        reports(running, first_step=41)
        done = work(action.id)

        assert (
            done.outcome == "Attempt 2 runs. It went on from step 40, as its first report says. That save is suspect."
        )
        assert Incident.objects.get(pk=nan).state == "OPEN"
        assert Incident.objects.get(pk=hang).state == "MITIGATED"

    def test_an_order_taken_while_a_hang_is_confirmed_ends_the_attempt_as_hung(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        status_update(run_id=running.id, hang="CONFIRMED")

        action = ask("RESTART_RUN", running)
        work(action.id, until=is_watched)

        assert attempt_by_id(running.attempt_id).reason == "HUNG"

    def test_a_stop_leaves_the_run_stopped(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        launch = launch_of_attempt(running.attempt_id)

        done = work(ask("STOP_RUN", running).id)

        assert done.state == "SUCCEEDED"
        assert launch is not None
        assert not alive(launch.pid or 0)
        assert run_by_id(running.id).state == "STOPPED"
        assert launches_alive() == []
        assert all(token.revoked_at for token in tokens_all())

    def test_the_next_save_is_waited_for_by_its_step(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        saved(running, 40)
        action = ask("RESTART_RUN", running, options={"when": "NEXT_CHECKPOINT"})
        services.action_advance(action_id=action.id, now=datetime.now(UTC))
        waiting = selectors.action_by_id(action.id)

        saved(running, 60)
        done = work(action.id, until=is_watched)

        assert (waiting.state, waiting.orders) == ("REQUESTED", ())
        assert done.resume_step == 60

    def test_a_run_that_moved_on_before_the_order_is_left_alone(self, running: Any, ask: Callable[..., Any]) -> None:
        action = ask("RESTART_RUN", running)
        moved = {"key": "slurm:9.0.0", "world_size": 2, "by": "somebody", "source": "API", "force": True}
        attempt_open(run_id=running.id, now=datetime.now(UTC), **moved)

        for order_id in selectors.orders_due(now=datetime.now(UTC)):
            tasks.order_run(order_id=order_id)

        row = selectors.action_by_id(action.id)
        assert row.state == "REFUSED"
        assert "moved on" in row.outcome
        assert [attempt.state for attempt in attempts_of(running.id)] == ["OPEN", "ENDED"]

    def test_an_attempt_that_ends_by_itself_meanwhile_is_followed_all_the_same(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", running)
        end = {"reason": "CRASHED", "authority": "WRAPPER", "by": "", "source": "LAUNCHER", "now": datetime.now(UTC)}
        attempt_end(attempt_id=running.attempt_id, **end)

        work(action.id, until=is_watched)

        assert run_by_id(running.id).attempt_number == 2

    def test_every_step_stands_in_the_run_s_log(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any], reports: Callable[..., None]
    ) -> None:
        action = ask("RESTART_RUN", running)
        work(action.id, until=is_watched)
        reports(running)
        work(action.id)

        events = events_latest(StreamKey.run(running.id), limit=200, kinds=["action.", "order.", "attempt."])
        told = [event.kind for event in reversed(events) if event.payload.get("action") in (None, action.id)]
        assert told[-9:] == [
            "action.requested",
            "action.running",
            "order.claimed",
            "order.settled",
            "attempt.ended",
            "attempt.opened",
            "order.claimed",
            "order.settled",
            "action.succeeded",
        ]


class TestAfterAReboot:
    def test_what_ran_before_it_is_gone_and_nobody_claims_to_know_how_it_ended(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        launch = launch_of_attempt(running.attempt_id)
        assert launch is not None
        Launch.objects.filter(pk=launch.id).update(boot_id="the boot before this one")

        launchers.launches_look(now=datetime.now(UTC))

        gone, attempt = launch_of_attempt(running.attempt_id), attempt_by_id(running.attempt_id)
        assert gone is not None
        assert (gone.state, gone.exit_status, gone.exit_signal) == ("GONE", None, None)
        assert (attempt.state, attempt.reason) == ("ENDED", "UNKNOWN")
        assert all(token.revoked_at for token in tokens_all())
        assert alive(launch.pid or 0)  # whoever has that pid in this boot is a stranger, and was left alone
        assert work(ask("RESTART_RUN", running).id, until=is_watched).attempt_id != running.attempt_id

    def test_what_runs_in_this_boot_is_found_again_by_whoever_comes(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        launch = launch_of_attempt(running.attempt_id)
        assert launch is not None

        seen = launchers.launches_look(now=datetime.now(UTC))

        assert seen == 0
        assert [row.id for row in launches_alive()] == [launch.id]
        assert work(ask("STOP_RUN", running).id).state == "SUCCEEDED"
        assert not alive(launch.pid or 0)


class TestTwice:
    @pytest.mark.django_db(transaction=True)
    def test_two_people_pressing_at_once_are_one_restart(
        self, local_run: Any, who: Any, boss: Any, work: Callable[..., Any]
    ) -> None:
        answers: list[Any] = []
        together = threading.Barrier(2)

        def press(principal: Any) -> None:
            together.wait(10)
            try:
                answers.append(
                    services.action_request(
                        principal=principal,
                        kind="RESTART_RUN",
                        run_id=local_run.id,
                        reason="It is down and has to go on",
                        source="WEB",
                        now=datetime.now(UTC),
                    )
                )
            except services.ActionOpen as error:
                answers.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=press, args=(principal,)) for principal in (who, boss)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        made = [answer for answer in answers if isinstance(answer, selectors.ActionRow)]
        refused = [answer for answer in answers if isinstance(answer, services.ActionOpen)]
        work(made[0].id, until=is_watched)
        assert (len(made), len(refused)) == (1, 1)
        assert refused[0].facts["action"].startswith("act_")
        assert Action.objects.count() == Launch.objects.count() == 1

    @pytest.mark.django_db(transaction=True)
    def test_two_workers_with_one_order_launch_once(self, local_run: Any, ask: Callable[..., Any]) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        together = threading.Barrier(2)

        def run() -> None:
            together.wait(10)
            try:
                tasks.order_run(order_id=order_id)
            finally:
                connection.close()

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert Launch.objects.count() == 1
        assert selectors.action_by_id(action.id).orders[0].tries == 1

    def test_a_cancelled_action_is_never_carried_out_by_a_late_worker(
        self, running: Any, ask: Callable[..., Any], who: Any
    ) -> None:
        action = ask("RESTART_RUN", running, options={"exclude_nodes": []})
        order_id = selectors.action_by_id(action.id).orders[0].id

        services.action_cancel(principal=who, action_id=action.id, reason="it came back", now=datetime.now(UTC))
        tasks.order_run(order_id=order_id)
        tasks.order_run(order_id=order_id)

        row = selectors.action_by_id(action.id)
        launch = launch_of_attempt(running.attempt_id)
        assert launch is not None
        assert alive(launch.pid or 0)
        assert (row.state, row.orders[0].state, row.orders[0].tries) == ("CANCELLED", "CANCELLED", 0)
        assert run_by_id(running.id).open_action_id is None

    def test_what_was_handed_out_cannot_be_cancelled(self, running: Any, ask: Callable[..., Any], who: Any) -> None:
        action = ask("RESTART_RUN", running)
        services.order_claim(order_id=selectors.action_by_id(action.id).orders[0].id, now=datetime.now(UTC))

        with pytest.raises(services.ActionMoved, match="running"):
            services.action_cancel(principal=who, action_id=action.id, reason="", now=datetime.now(UTC))


class TestDoubt:
    def test_a_worker_that_died_before_the_launch_is_read_back_and_launched_once(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        lost = services.order_claim(order_id=order_id, now=datetime.now(UTC))
        services.order_doubt(order_id=order_id, now=datetime.now(UTC))
        doubted = selectors.action_by_id(action.id)

        watched = work(action.id, until=is_watched)
        assert lost is not None
        late = launchers.order_carry_out(lost)
        services.order_settle(order_id=order_id, claim=lost.claim, outcome=late, now=datetime.now(UTC))

        assert (doubted.state, doubted.orders[0].state) == ("UNCERTAIN", "UNCERTAIN")
        (line,) = selectors.look_lines(doubted)
        assert line.startswith("ls -l ")
        assert line.endswith(f"/launches/{id_write('ord', doubted.orders[0].id)}")
        assert watched.orders[0].tries == 2
        assert Launch.objects.count() == 1
        assert selectors.action_by_id(action.id).orders == watched.orders

    def test_a_worker_that_died_after_the_launch_is_read_back_and_nothing_is_launched_again(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        order = services.order_claim(order_id=order_id, now=datetime.now(UTC))
        assert order is not None
        outcome = launchers.order_carry_out(order)
        services.order_doubt(order_id=order_id, now=datetime.now(UTC))

        watched = work(action.id, until=is_watched)

        launch = launch_of_attempt(watched.attempt_id)
        assert launch is not None
        assert launch.pid == outcome.facts["pid"]
        assert watched.orders[0].tries == 1

    def test_the_sweep_doubts_only_what_has_been_in_hand_for_long(
        self, local_run: Any, ask: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        claimed_at = datetime.now(UTC)
        services.order_claim(order_id=order_id, now=claimed_at)

        soon = selectors.orders_stale(now=claimed_at + timedelta(seconds=59), after_s=tasks.CLAIM_LIMIT_S)
        late = selectors.orders_stale(now=claimed_at + timedelta(seconds=61), after_s=tasks.CLAIM_LIMIT_S)

        assert (soon, late) == ([], [order_id])

    @pytest.fixture
    def dead(self) -> Iterator[str]:
        """The name of a worker of this machine that was killed, as its parent has not noticed yet."""
        child = subprocess.Popen(["sleep", "600"])
        name = process_name(replace(process_own(), pid=child.pid, start_ticks=wrapper.process_read(child.pid)[3]))
        assert not launchers.holder_died(name)
        child.kill()
        wait_for(lambda: launchers.holder_died(name), "the worker's end")
        yield name
        child.wait()

    def test_an_order_of_a_worker_that_is_gone_is_doubted_at_once_and_read_back(
        self, local_run: Any, ask: Callable[..., Any], work: Callable[..., Any], dead: str
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        order = services.order_claim(order_id=order_id, now=datetime.now(UTC), holder=dead)
        assert order is not None
        outcome = launchers.order_carry_out(order)

        tasks.orders_sweep()
        doubted = selectors.action_by_id(action.id).orders[0].state
        watched = work(action.id, until=is_watched)

        launch = launch_of_attempt(watched.attempt_id)
        assert launch is not None
        assert doubted == "UNCERTAIN"
        assert launch.pid == outcome.facts["pid"]
        assert watched.orders[0].tries == 1

    def test_a_living_worker_s_order_is_never_doubted_nor_one_s_of_which_nothing_is_seen(
        self, local_run: Any, ask: Callable[..., Any], dead: str
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        services.order_claim(order_id=order_id, now=datetime.now(UTC))
        died = process_named(dead)
        assert died is not None
        others = [
            launchers.holder_own(),
            process_name(replace(died, boot_id="another-machine")),
            process_name(replace(died, pid_namespace="pid:[1]")),
            "no name",
            "",
        ]

        for holder in others:
            Order.objects.filter(pk=order_id).update(holder=holder)
            tasks.orders_sweep()

        assert selectors.action_by_id(action.id).orders[0].state == "CLAIMED"

    def test_the_next_worker_s_claim_is_not_doubted_for_the_last_one_s_death(
        self, local_run: Any, ask: Callable[..., Any], dead: str
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        services.order_claim(order_id=order_id, now=datetime.now(UTC), holder=dead)
        (held,) = selectors.orders_held()
        Order.objects.filter(pk=order_id).update(claim="the next one's", holder=launchers.holder_own())

        services.order_doubt(order_id=order_id, claim=held.claim, now=datetime.now(UTC))

        assert selectors.action_by_id(action.id).orders[0].state == "CLAIMED"

    def test_a_reading_back_that_was_cut_off_is_done_again_at_once(
        self, local_run: Any, ask: Callable[..., Any], dead: str
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        order_id = selectors.action_by_id(action.id).orders[0].id
        services.order_claim(order_id=order_id, now=datetime.now(UTC))
        services.order_doubt(order_id=order_id, now=datetime.now(UTC))
        due = datetime.now(UTC) + timedelta(seconds=2)
        services.order_look_claim(order_id=order_id, now=due, for_s=tasks.CLAIM_LIMIT_S, holder=dead)

        (held,) = selectors.orders_held()
        services.order_look_again(order_id=order_id, holder=held.holder, now=due)

        assert selectors.orders_uncertain(now=due) == [order_id]

    def test_what_slurm_was_told_is_left_to_come_to_its_end(
        self, local_run: Any, ask: Callable[..., Any], dead: str
    ) -> None:
        action = ask("RESTART_RUN", local_run)
        services.order_claim(
            order_id=selectors.action_by_id(action.id).orders[0].id, now=datetime.now(UTC), holder=dead
        )

        Order.objects.update(launcher="SLURM")

        assert selectors.orders_held() == []

    def test_a_person_can_say_what_they_saw(
        self, running: Any, ask: Callable[..., Any], who: Any, work: Callable[..., Any]
    ) -> None:
        action = ask("STOP_RUN", running)
        order_id = selectors.action_by_id(action.id).orders[0].id
        services.order_claim(order_id=order_id, now=datetime.now(UTC))
        services.order_doubt(order_id=order_id, now=datetime.now(UTC))

        done = services.action_settle(
            principal=who,
            action_id=action.id,
            outcome="FAILED",
            reason="I looked: the processes are all there",
            now=datetime.now(UTC),
        )

        assert (done.state, done.decided_by, done.orders[0].state) == ("FAILED", "operator", "FAILED")
        assert run_by_id(running.id).attempt_state == "OPEN"

    def test_what_is_certain_cannot_be_settled(self, running: Any, ask: Callable[..., Any], who: Any) -> None:
        action = ask("STOP_RUN", running)

        with pytest.raises(services.ActionMoved):
            services.action_settle(
                principal=who,
                action_id=action.id,
                outcome="SUCCEEDED",
                reason="long enough words",
                now=datetime.now(UTC),
            )


class TestFoundAgain:
    def test_a_crash_is_seen_by_the_wrapper_s_word(self, running: Any) -> None:
        launch = launch_of_attempt(running.attempt_id)
        os.kill(wait_program(launch), signal.SIGKILL)

        wait_for(lambda: launchers.launches_look(now=datetime.now(UTC)), "the crash")

        attempt = attempt_by_id(running.attempt_id)
        assert (attempt.reason, attempt.authority) == ("CRASHED", "WRAPPER")
        assert run_by_id(running.id).state == "STOPPED"

    def test_an_end_that_nobody_saw_is_unknown_and_takes_no_other_s_word_away(self, running: Any) -> None:
        launch = launch_of_attempt(running.attempt_id)
        assert launch is not None
        Launch.objects.filter(pk=launch.id).update(boot_id="an earlier boot")

        launchers.launches_look(now=datetime.now(UTC))

        attempt = attempt_by_id(running.attempt_id)
        assert (attempt.reason, attempt.authority) == ("UNKNOWN", "SILENCE")

    def test_a_process_out_of_sight_is_left_as_it_is(self, running: Any) -> None:
        Launch.objects.update(pid_namespace="pid:[1]")

        assert launchers.launches_look(now=datetime.now(UTC)) == 0
        assert attempt_by_id(running.attempt_id).state == "OPEN"
        assert Order.objects.exclude(state="DONE").count() == 0


def wait_program(launch: Any) -> int:
    """Return the pid of the program under a launch's wrapper."""
    started = Path(launch.directory) / "started.json"
    return int(wait_for(lambda: json.loads(started.read_text()).get("program_pid"), "the program"))


class TestHardCases:
    def test_a_program_that_does_not_listen_is_waited_for_killed_and_then_replaced(
        self,
        make_run: Callable[..., Any],
        launches: Path,
        program: Callable[..., list[str]],
        ask: Callable[..., Any],
        work: Callable[..., Any],
        reports: Callable[..., None],
    ) -> None:
        text = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        setting = {
            "kind": "LOCAL",
            "command": program(text),
            "environment": {"MARK": str(launches.parent)},
            "stop_grace_s": 2.5,
        }
        run = make_run(launcher=setting)
        first = work(ask("RESTART_RUN", run).id, until=is_watched)
        reports(run)
        work(first.id)
        deaf = wait_program(launch_of_attempt(first.attempt_id))

        second = work(ask("RESTART_RUN", run_by_id(run.id)).id, until=is_watched)

        launch = Launch.objects.get(attempt_id=first.attempt_id)
        kinds = [event.kind for event in events_latest(StreamKey.run(run.id), limit=200)]
        assert "attempt.reason" not in kinds
        assert [order.kind for order in second.orders] == ["STOP", "LAUNCH"]
        assert second.orders[0].tries == 1
        assert "stopping" in [row.name for row in second.milestones]
        assert not alive(deaf)
        assert launch.exit_signal == signal.SIGKILL

    def test_a_start_that_fails_after_the_stop_gives_up_and_says_what_was_done(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        broken = {**running.launcher, "command": ["/no/such/program"]}
        run_put(
            slug=running.slug,
            cluster_id=running.cluster_id,
            fields={"launcher": broken},
            by="t",
            source="API",
            now=datetime.now(UTC),
        )

        done = work(ask("RESTART_RUN", running).id)

        assert done.state == "FAILED"
        assert "/no/such/program" in done.outcome
        assert done.outcome.endswith("Before that: stopped.")
        assert run_by_id(running.id).state == "GAVE_UP"

    def test_a_launcher_that_is_away_after_the_stop_is_asked_for_ten_minutes(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        asked = ask("RESTART_RUN", running)
        stop = services.order_claim(order_id=asked.orders[0].id, now=datetime.now(UTC))
        assert stop is not None
        done = launchers.order_carry_out(stop)
        services.order_settle(order_id=stop.id, claim=stop.claim, outcome=done, now=datetime.now(UTC))
        moment, away = datetime.now(UTC), Outcome("UNAVAILABLE", "it does not answer")

        def tried(until: datetime) -> str:
            nonlocal moment
            while True:
                order = Order.objects.filter(action_id=asked.id).latest("pk")
                if order.state != "WAITING" or order.not_before > until:
                    return selectors.action_by_id(asked.id).state
                moment = max(order.not_before, moment)
                taken = services.order_claim(order_id=order.pk, now=moment)
                assert taken is not None
                services.order_settle(order_id=order.pk, claim=taken.claim, outcome=away, now=moment)

        began = moment
        after = [tried(began + timedelta(minutes=minutes)) for minutes in (1, 9, 11)]

        assert after == ["RUNNING", "RUNNING", "FAILED"]
        row = selectors.action_by_id(asked.id)
        assert "was not available" in row.outcome
        assert "Before that: stopped" in row.outcome
        assert run_by_id(running.id).state == "GAVE_UP"

    def test_a_start_that_is_left_from_before_a_pause_is_off(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        asked, days = ask("RESTART_RUN", running), timedelta(days=6)
        stop = services.order_claim(order_id=asked.orders[0].id, now=datetime.now(UTC))
        assert stop is not None
        done = launchers.order_carry_out(stop)
        services.order_settle(order_id=stop.id, claim=stop.claim, outcome=done, now=datetime.now(UTC))
        launch = Order.objects.get(action_id=asked.id, kind="LAUNCH")

        taken = services.order_claim(order_id=launch.pk, now=datetime.now(UTC) + days)

        row = selectors.action_by_id(asked.id)
        assert taken is None
        assert row.state == "FAILED"
        assert "nobody was at work until now" in row.outcome
        assert "Before that: stopped" in row.outcome

    def test_a_start_waits_after_a_pause_until_it_is_heard_what_happened_meanwhile(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        asked = ask("RESTART_RUN", running)
        stop = services.order_claim(order_id=asked.orders[0].id, now=datetime.now(UTC))
        assert stop is not None
        done = launchers.order_carry_out(stop)
        services.order_settle(order_id=stop.id, claim=stop.claim, outcome=done, now=datetime.now(UTC))
        launch, back = Order.objects.get(action_id=asked.id, kind="LAUNCH"), datetime.now(UTC) + timedelta(seconds=60)
        DoorBeat.objects.create(instance="p", accepting_since=back, last_beat_at=back)

        at_once = services.order_claim(order_id=launch.pk, now=back + timedelta(seconds=1))
        DoorBeat.objects.update(last_beat_at=back + timedelta(seconds=16))
        later = services.order_claim(order_id=launch.pk, now=back + timedelta(seconds=16))

        assert at_once is None
        assert later is not None

    def test_taking_the_launcher_away_during_a_stop_leaves_nothing_open(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any], now: datetime
    ) -> None:
        asked = ask("STOP_RUN", running)
        stop = services.order_claim(order_id=asked.orders[0].id, now=datetime.now(UTC))
        assert stop is not None
        going = Outcome("GOING_ON", "it was asked to leave")
        services.order_settle(order_id=stop.id, claim=stop.claim, outcome=going, now=datetime.now(UTC))
        run_put(
            slug=running.slug, cluster_id=running.cluster_id, fields={"launcher": {}}, by="t", source="API", now=now
        )
        os.kill(launches_alive()[0].pid or 0, signal.SIGTERM)

        row = work(asked.id)

        assert row.state == "SUCCEEDED"
        assert launches_alive() == []

    def test_a_stop_whose_launcher_is_away_is_looked_at_more_rarely_and_not_for_ever(
        self, running: Any, ask: Callable[..., Any]
    ) -> None:
        asked = ask("STOP_RUN", running)
        away, moment = Outcome("UNAVAILABLE", "it does not answer"), datetime.now(UTC)
        order = services.order_claim(order_id=asked.orders[0].id, now=moment)
        assert order is not None
        taken = Outcome("GOING_ON", "it was asked to leave")
        services.order_settle(order_id=order.id, claim=order.claim, outcome=taken, now=moment)
        looks = 0
        while (row := Order.objects.get(pk=order.id)).state == "WAITING":
            moment, looks = row.not_before, looks + 1
            again = services.order_claim(order_id=order.id, now=moment)
            assert again is not None
            services.order_settle(order_id=order.id, claim=again.claim, outcome=away, now=moment)

        said = [event.text for event in events_latest(StreamKey.run(running.id), limit=200)]
        assert 25 < looks < 45
        assert sum("not available" in text for text in said) <= 4
        assert selectors.action_by_id(asked.id).state == "REFUSED"

    def test_a_restart_at_the_end_of_the_attempt_starts_the_next_one_after_a_crash(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", running, options={"when": "RUN_END"})
        state_meanwhile = run_by_id(running.id).state
        services.action_advance(action_id=action.id, now=datetime.now(UTC))
        waiting = selectors.action_by_id(action.id)

        os.kill(wait_program(launch_of_attempt(running.attempt_id)), signal.SIGKILL)
        done = work(action.id, until=is_watched)

        assert (waiting.state, waiting.orders, state_meanwhile) == ("REQUESTED", (), "RUNNING")
        assert [order.kind for order in done.orders] == ["LAUNCH"]
        assert [attempt.reason for attempt in attempts_of(running.id)] == ["", "CRASHED"]

    def test_a_run_that_finished_is_not_started_again(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any], now: datetime
    ) -> None:
        action = ask("RESTART_RUN", running, options={"when": "RUN_END"})
        attempt_end(attempt_id=running.attempt_id, reason="FINISHED", authority="CLIENT", by="t", source="API", now=now)

        done = work(action.id)

        assert (done.state, done.orders) == ("REFUSED", ())
        assert "finished" in done.outcome

    def test_nothing_is_started_beside_an_attempt_that_somebody_else_began(
        self, running: Any, ask: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", running)
        tasks.order_run(order_id=selectors.action_by_id(action.id).orders[0].id)
        attempt_open(
            run_id=running.id, key="slurm:9.0.0", world_size=4, by="slurm", source="API", now=datetime.now(UTC)
        )

        for order_id in selectors.orders_due(now=datetime.now(UTC)):
            tasks.order_run(order_id=order_id)

        row = selectors.action_by_id(action.id)
        assert row.state == "FAILED"
        assert "nothing was started beside it" in row.outcome
        assert Launch.objects.count() == 1
        assert row.outcome.endswith("Before that: stopped.")
        assert run_by_id(running.id).state == "STARTING"

    def test_a_program_that_lives_on_after_a_wrong_word_of_its_end_is_stopped_first(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        first = launch_of_attempt(running.attempt_id)
        assert first is not None
        attempt_end(
            attempt_id=running.attempt_id,
            reason="CRASHED",
            authority="CLIENT",
            by="rank 0",
            source="API",
            now=datetime.now(UTC),
        )
        assert alive(first.pid)

        row = work(ask("RESTART_RUN", run_by_id(running.id)).id, until=is_watched)

        assert not alive(first.pid)
        assert [order.kind for order in row.orders] == ["STOP", "LAUNCH"]
        assert len(launches_alive()) == 1

    def test_nothing_is_started_beside_a_program_of_an_earlier_attempt_that_still_lives(
        self, running: Any, ask: Callable[..., Any], work: Callable[..., Any]
    ) -> None:
        first = launch_of_attempt(running.attempt_id)
        assert first is not None
        now = datetime.now(UTC)
        attempt_end(
            attempt_id=running.attempt_id, reason="CRASHED", authority="CLIENT", by="rank 0", source="API", now=now
        )
        second, _ = attempt_open(run_id=running.id, key="by-hand:2", world_size=1, by="somebody", source="API", now=now)
        attempt_end(attempt_id=second.id, reason="CRASHED", authority="CLIENT", by="rank 0", source="API", now=now)

        row = work(ask("RESTART_RUN", run_by_id(running.id)).id)

        assert row.state == "REFUSED"
        assert "What was started as attempt 1 still lives" in row.outcome
        assert alive(first.pid)
        assert len(attempts_of(running.id)) == 2

    def test_a_start_that_is_overtaken_between_two_tries_leaves_no_open_attempt_and_no_token(
        self, running: Any, ask: Callable[..., Any]
    ) -> None:
        action = ask("RESTART_RUN", running)
        tasks.order_run(order_id=selectors.action_by_id(action.id).orders[0].id)
        moment = datetime.now(UTC)
        start = selectors.action_by_id(action.id).orders[1].id
        claimed = services.order_claim(order_id=start, now=moment)
        assert claimed is not None
        away = selectors.Outcome("UNAVAILABLE", "no more processes")
        services.order_settle(order_id=start, claim=claimed.claim, outcome=away, now=moment)
        other = {"kind": "WEBHOOK", "url": "http://127.0.0.1:9/"}
        run_put(
            slug=running.slug,
            cluster_id=running.cluster_id,
            fields={"launcher": other},
            by="t",
            source="API",
            now=moment,
        )

        services.order_claim(order_id=start, now=moment + timedelta(seconds=5))
        launchers.launches_look(now=datetime.now(UTC))  # the first attempt's own token ends with its program

        row = selectors.action_by_id(action.id)
        assert (row.state, row.orders[1].state) == ("FAILED", "CANCELLED")
        assert row.outcome == "The run's launcher was changed meanwhile. Before that: stopped."
        assert next((one.state, one.reason) for one in attempts_of(running.id)) == ("ENDED", "CANCELLED")
        assert all(token.revoked_at for token in tokens_all())
        assert run_by_id(running.id).state == "GAVE_UP"

    @pytest.mark.parametrize(
        ("status", "state", "outcome"),
        [
            (0, "SUCCEEDED", "Attempt 1 ran, and finished."),
            (3, "FAILED", "Attempt 1 ended with status 3 after step 7."),
        ],
    )
    def test_a_program_that_ends_between_its_first_step_and_the_next_look_is_told_as_it_was(
        self,
        make_run: Callable[..., Any],
        launches: Path,
        program: Callable[..., list[str]],
        ask: Callable[..., Any],
        reports: Callable[..., None],
        status: int,
        state: str,
        outcome: str,
    ) -> None:
        run = make_run(launcher={"kind": "LOCAL", "command": program(f"import sys; sys.exit({status})")})
        action = ask("RESTART_RUN", run)
        tasks.order_run(order_id=selectors.action_by_id(action.id).orders[0].id)
        reports(run, step=7)
        wait_for(lambda: launchers.launches_look(now=datetime.now(UTC)), "the end")

        services.action_watch(action_id=action.id, now=datetime.now(UTC))

        row = selectors.action_by_id(action.id)
        assert row.state == state
        assert row.outcome.startswith(outcome)

    def test_a_launch_that_cannot_be_looked_at_hides_no_other(self, running: Any) -> None:
        launch = Launch.objects.get(attempt_id=running.attempt_id)
        end = Path(launch.directory) / "exit.json"
        end.write_text('{"ended_at": "never"}')

        with pytest.raises(ExceptionGroup, match="could not be looked at"):
            launchers.launches_look(now=datetime.now(UTC))

        end.unlink()
        assert launchers.launches_look(now=datetime.now(UTC)) == 0
