"""Bringing an action to its stage, and killing there. Nothing of Paceline knows that it is watched: rows are locked, processes
are stopped, the programs and the receiver are made to wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.kill import plan
from tests.kill.house import House, command_of
from tests.kill.plan import Case

REASON = "Killed on purpose, to see that nothing is lost"
FAST_S = 0.001


@dataclass
class Strike:
    """One seed's action, from before it is asked for until the kill."""

    house: House
    case: Case
    reached: str = ""
    wrapper: int = 0
    asking: list[threading.Thread] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Ask, reach the stage, kill, let go, and see that everybody comes back."""
        try:
            with _STAGES[self.case.stage](self):
                self.reached = self.reached or self.case.stage
                time.sleep(self.case.pause_s)
                self.kill(self.case.victim)
                if self.case.again:
                    time.sleep(0.05)
                    self.kill(self.case.again)
        finally:
            self.house.mend()
            for thread in self.asking:
                thread.join(240)
        assert not self.faults, self.faults

    def kill(self, victim: str) -> None:
        if victim != "launcher":
            self.house.kill(victim)
        elif self.case.launcher == plan.WEBHOOK:
            self.house.receiver_kill()
        elif self.house.slurm is not None and self.case.launcher == plan.SLURM:
            self.house.slurm_kill()
        elif pid := self.wrapper or self.wrapper_now():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- asking -------------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for the action, insisting with one key."""
        kind = {"stop": "STOP_RUN", "exclude": "EXCLUDE_NODE"}.get(self.case.wish, "RESTART_RUN")
        about = {"node": self.node} if kind == "EXCLUDE_NODE" else {"run": self.case.slug}
        wish = {"kind": kind, "reason": REASON, **about}
        self.house.insist("POST", "actions", wish, **{"Idempotency-Key": f"ask-{self.case.seed}"})
        if self.case.wish == "cancel" and self.case.stage == plan.BEFORE_CLAIM:
            self.cancel()

    def cancel(self) -> None:
        """Cancel it; that it is too late for that is an answer too."""
        key = {"Idempotency-Key": f"cancel-{self.case.seed}"}
        path = f"actions/{self.code()}/cancel"
        answer = self.house.wait(
            lambda: (
                (found := self.house.ask("POST", path, {"reason": "Not any more"}, **key))[0] in (200, 409) and found
            ),
            "an answer to the cancel",
            180,
        )
        (self.house.run_folder(self.case.slug) / f"cancelled-{answer[0]}").touch()

    def apart(self, do: Callable[[], None]) -> None:
        """Do something in a thread of its own."""

        def work() -> None:
            try:
                do()
            except AssertionError as error:
                self.faults.append(str(error))

        self.asking.append(threading.Thread(target=work, daemon=True))
        self.asking[-1].start()

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        return f"node-{self.case.slug}"

    @property
    def kind(self) -> str:
        """Which order of the action this is about."""
        early = self.case.stage in (plan.BEFORE_CLAIM, plan.IN_CLAIM, plan.BEFORE_READ_BACK)
        early |= self.case.launcher == plan.SLURM and self.case.stage == plan.AFTER_CLAIM
        stops = self.case.wish == "stop" or (self.case.wish in plan.RESTARTS and early)
        return "STOP" if stops and (self.case.launcher != plan.WEBHOOK or self.case.wish == "stop") else "LAUNCH"

    def action(self) -> int:
        rows = self.house.sql(
            "SELECT a.id FROM remediation_action a LEFT JOIN runs_run r ON r.id = a.run_id"
            " WHERE r.slug = %s ORDER BY a.id DESC LIMIT 1",
            self.case.slug,
        )
        return int(rows[0][0])

    def code(self) -> str:
        from apps.common.ids import id_write

        return id_write("act", self.action())

    def order_is(self, holds: str, what: str) -> int:
        """Wait until the order in question is so; return its row."""
        action = self.action()
        statement = f"SELECT id FROM remediation_order WHERE action_id = %s AND kind = %s AND ({holds})"
        with self.house.connect() as connection:
            return int(
                self.house.wait(
                    lambda: connection.execute(statement, (action, self.kind)).fetchone(),
                    f"{self.case.words}: the order to be {what}",
                    step_s=FAST_S,
                )[0]
            )

    def somebody_waits(self, holder: int) -> None:
        """Wait until a process of the installation waits for rows that this connection holds."""
        statement = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
        self.house.wait(
            lambda: self.house.sql(statement, holder), f"{self.case.words}: somebody to wait for what is held"
        )

    def wrapper_now(self) -> int:
        """Return the pid of the wrapper of the newest launch of this run that is in sight."""
        from apps.common.ids import id_write

        statement = (
            "SELECT o.id FROM remediation_order o JOIN remediation_action a ON a.id = o.action_id JOIN runs_run r"
            " ON r.id = a.run_id WHERE r.slug = %s AND o.kind = 'LAUNCH' ORDER BY o.id DESC"
        )
        for (order,) in self.house.sql(statement, self.case.slug):
            if pid := wrapper_of(id_write("ord", order)):
                return pid
        return 0

    def wrapper_caught(self) -> None:
        """Stop the wrapper of this run's launch as soon as it is there."""
        from apps.common.ids import id_write

        code = id_write("ord", self.order_is("state IN ('WAITING', 'CLAIMED')", "made"))
        self.wrapper = self.house.wait(lambda: wrapper_of(code), "a wrapper", step_s=FAST_S)
        os.kill(self.wrapper, signal.SIGSTOP)
        folder = self.house.data / "launches" / code
        self.reached = plan.AFTER_CALL if list(folder.glob("begun-*")) else plan.AFTER_CLAIM

    @contextmanager
    def holding(self, statement: str, *values: Any) -> Iterator[int]:
        """Hold rows locked while the block runs, or until the database dies; gives whom others wait for."""

        def hold() -> psycopg.Connection[Any] | None:
            with suppress(psycopg.OperationalError):  # the kill of another seed may have the database start again
                holder = psycopg.connect(self.house.database_url)
                holder.execute(statement, values)
                return holder
            return None

        holder = self.house.wait(hold, f"{self.case.words}: rows to be held")
        try:
            yield holder.info.backend_pid
        finally:
            holder.close()  # which gives back what is held

    @contextmanager
    def gate(self, *names: str) -> Iterator[None]:
        """Make the run's program or its receiver wait while the block runs."""
        folder = self.house.run_folder(self.case.slug)
        for name in names:
            (folder / name).touch()
        try:
            yield
        finally:
            for name in names:
                (folder / name).unlink(missing_ok=True)

    def is_written(self, word: str) -> None:
        """Wait until the evidence of this run has one more line that begins with `word` than before it was asked."""
        self.house.wait(
            lambda: sum(words[0] == word for words in self.house.evidence(self.case.slug)) > self.before.get(word, 0),
            f"{self.case.words}: the evidence to say {word}",
            step_s=0.005,
        )

    before: dict[str, int] = field(default_factory=dict)

    def count_before(self) -> None:
        for words in self.house.evidence(self.case.slug):
            self.before[words[0]] = self.before.get(words[0], 0) + 1


LOCK_ACTION = "SELECT 1 FROM remediation_action WHERE id = %s FOR UPDATE"


@contextmanager
def asked(strike: Strike) -> Iterator[None]:
    statement, value = "SELECT 1 FROM runs_run WHERE slug = %s FOR UPDATE", strike.case.slug
    if strike.case.launcher == plan.LEDGER:
        statement = (
            "SELECT 1 FROM fleet_nodestatus s JOIN fleet_node n ON n.id = s.node_id WHERE n.name = %s FOR UPDATE OF s"
        )
        value = strike.node
    with strike.holding(statement, value) as holder:
        strike.apart(strike.ask)
        strike.somebody_waits(holder)
        yield


@contextmanager
def before_claim(strike: Strike) -> Iterator[None]:
    with strike.house.paused("orders"):
        strike.ask()
        yield


@contextmanager
def in_claim(strike: Strike) -> Iterator[None]:
    with ExitStack() as held:
        with strike.house.paused("orders"):
            strike.ask()
            holder = held.enter_context(strike.holding(LOCK_ACTION, strike.action()))
        strike.somebody_waits(holder)
        if strike.case.wish == "cancel":
            strike.apart(strike.cancel)
            time.sleep(0.2)
        yield


@contextmanager
def after_claim(strike: Strike) -> Iterator[None]:
    strike.count_before()
    if strike.case.launcher == plan.WEBHOOK:
        with strike.gate("hold-before"):
            strike.ask()
            strike.is_written("post")
            yield
        return
    if strike.case.launcher == plan.SLURM:
        assert strike.house.slurm is not None
        strike.house.slurm.saved()  # a stopped one cannot write any more
        with strike.house.slurm_paused():
            strike.ask()
            strike.order_is("state = 'CLAIMED'", "handed out")
            yield
        return
    with strike.house.paused("orders"):
        strike.ask()
    strike.wrapper_caught()
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(strike.wrapper, signal.SIGCONT)


@contextmanager
def after_call(strike: Strike) -> Iterator[None]:
    strike.count_before()
    if strike.case.launcher == plan.WEBHOOK:
        with strike.gate("hold-after"):
            strike.ask()
            strike.is_written("did")
            yield
        return
    with strike.house.paused("orders"):
        strike.ask()
    strike.order_is("state IN ('CLAIMED', 'DONE')", "handed out")
    with strike.holding(LOCK_ACTION, strike.action()) as holder:
        strike.is_written("begun")
        rows = strike.house.sql(
            "SELECT state FROM remediation_order WHERE action_id = %s ORDER BY id DESC", strike.action()
        )
        strike.reached = plan.AFTER_CALL if rows[0][0] == "CLAIMED" else plan.AFTER_SETTLE
        if strike.reached == plan.AFTER_CALL:
            strike.somebody_waits(holder)
        yield


@contextmanager
def before_read_back(strike: Strike) -> Iterator[None]:
    if strike.case.launcher != plan.WEBHOOK:
        with strike.gate("slow"):
            strike.ask()
            strike.order_is("asked_at IS NOT NULL", "asked to leave")
            yield
        return
    fails = "fail-before" if strike.case.seed % 2 else "fail-after"
    with strike.gate(fails):
        strike.ask()
        strike.order_is("state = 'UNCERTAIN'", "in doubt")
    with strike.house.paused("orders"):
        yield


@contextmanager
def after_settle(strike: Strike) -> Iterator[None]:
    with strike.gate("quiet"):
        strike.ask()
        strike.order_is("state = 'DONE'", "done")
        yield


_STAGES: dict[str, Callable[[Strike], Any]] = {
    plan.ASKED: asked,
    plan.BEFORE_CLAIM: before_claim,
    plan.IN_CLAIM: in_claim,
    plan.AFTER_CLAIM: after_claim,
    plan.AFTER_CALL: after_call,
    plan.BEFORE_READ_BACK: before_read_back,
    plan.AFTER_SETTLE: after_settle,
}


def wrapper_of(order_code: str) -> int:
    """Return the pid of the wrapper of an order, 0 where none is in sight; of two the later one, which stays."""
    part = f"/launches/{order_code} "
    found = [
        int(name)
        for name in os.listdir("/proc")
        if name.isdecimal() and "wrapper.py" in (line := command_of(int(name))) and part in f"{line} "
    ]
    return max(found, default=0)
