"""What must hold of every run after whatever died: read from the database and from the programs' own account, then judged."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tests.kill import plan
from tests.kill.house import House
from tests.kill.plan import Case

OVER = {"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "REFUSED"}
NOTHING = {"CANCELLED", "EXPIRED", "REFUSED"}
"""States that say that nothing was done."""


@dataclass(frozen=True)
class ActionFact:
    """An action as it stands in the end."""

    id: int
    kind: str
    state: str
    outcome: str
    began: bool
    orders: tuple[OrderFact, ...]
    look: tuple[str, ...] = ()
    """What a person is told to look at while it is in doubt."""

    @property
    def says_where(self) -> bool:
        """Return whether that names each order in doubt where its launcher knows it, or the job or pid that it is about."""
        doubted = [order for order in self.orders if order.state == "UNCERTAIN" and order.error]
        lines = "\n".join(self.look)
        about = re.search(r"^(scontrol show job|ps -fp) \d+$", lines, re.MULTILINE)
        return bool(doubted) and all(order.code in lines or about for order in doubted)


@dataclass(frozen=True)
class OrderFact:
    """An order as it stands in the end; receivers know it by `code`, programs by `key`, that of the attempt it opened."""

    code: str
    kind: str
    state: str
    error: str
    key: str = ""
    job: str = ""

    @property
    def known_as(self) -> str:
        return self.key or f"order:{self.code}"

    def started(self, key: str) -> bool:
        """Return whether what lives under a key is what this order started; a job reports under its own key."""
        return key == self.known_as or (bool(self.job) and key.startswith(f"slurm:{self.job}."))


@dataclass(frozen=True)
class Facts:
    """All that is known of one seed's run, the action of the seed last."""

    case: Case
    actions: tuple[ActionFact, ...]
    evidence: tuple[tuple[str, ...], ...]
    alive: tuple[str, ...]
    cancel_answers: tuple[int, ...]
    log_holes: int
    held: bool
    """Whether the run's status or a node is still held by an action that is over."""

    launches_alive: int
    attempts_open: int
    exclusions_open: int
    exclusions: int
    status_excluded: bool


def judge(facts: Facts) -> list[str]:
    """Return every sentence that does not hold of one seed."""
    wrong = [*_never_double(facts), *_never_lost(facts), *_ledger(facts)]
    if facts.log_holes:
        wrong.append(f"the log has {facts.log_holes} holes")
    return wrong


def _never_double(facts: Facts) -> list[str]:
    wrong = [f"a second program beside a living one: {' '.join(w)}" for w in facts.evidence if w[0] == "double"]
    begun = Counter(words[1] for words in facts.evidence if words[0] in ("begun", "double"))
    wrong += [f"{key} was begun {count} times" for key, count in begun.items() if count > 1]
    wrong += [f"the receiver got {words[1]} again after it was done" for words in facts.evidence if words[0] == "again"]
    did = Counter(words[1] for words in facts.evidence if words[0] == "did")
    wrong += [f"{code} was done {count} times" for code, count in did.items() if count > 1]
    for action in facts.actions:
        launches = [order for order in action.orders if order.kind == "LAUNCH"]
        starts = sum(count for key, count in begun.items() if any(order.started(key) for order in launches))
        if starts > 1:
            wrong.append(f"action {action.id} started {starts} programs")
        if action.state in NOTHING and not action.began and starts:
            wrong.append(f"action {action.id} is {action.state} and was executed")
    if len(facts.alive) > 1:
        wrong.append(f"{len(facts.alive)} programs of one run live at once")
    if facts.attempts_open > 1:
        wrong.append(f"{facts.attempts_open} attempts are open")
    return wrong


def _never_lost(facts: Facts) -> list[str]:
    if not facts.actions:
        return ["the action that was asked for is not there"]
    wrong = []
    for action in facts.actions:
        if action.state == "UNCERTAIN":
            if not action.says_where:
                wrong.append(f"action {action.id} is uncertain and does not say what to look at")
        elif action.state not in OVER:
            wrong.append(f"action {action.id} is {action.state} for ever")
        elif not action.outcome:
            wrong.append(f"action {action.id} is {action.state} without a word")
    last = facts.actions[-1]
    if facts.held and last.state in OVER:
        wrong.append("the run or a node is held by an action that is over")
    if 200 in facts.cancel_answers and last.state != "CANCELLED":
        wrong.append(f"a cancel was answered 200, and the action is {last.state}")
    return wrong + _as_said(facts, last)


def _as_said(facts: Facts, last: ActionFact) -> list[str]:
    """What the action says must be what is so."""
    wrong = []
    launch = next((order for order in reversed(last.orders) if order.kind == "LAUNCH"), None)
    lives = launch is not None and [launch.started(key) for key in facts.alive] == [True]
    if last.kind == "RESTART_RUN" and last.state == "SUCCEEDED" and not lives:
        wrong.append(f"the restart succeeded, and what lives is {facts.alive}, not {launch.known_as if launch else ''}")
    if last.kind == "STOP_RUN" and last.state == "SUCCEEDED" and facts.alive:
        wrong.append("the stop succeeded, and the program lives")
    if last.state == "CANCELLED" and (last.began or (last.orders and last.orders[-1].state != "CANCELLED")):
        wrong.append("a cancelled action has an order that was handed out")
    # A job of somebody else is known as a launch of ours only once it was started again.
    by_paceline = facts.case.wish != "requeue" or last.state == "SUCCEEDED"
    by_paceline &= facts.case.launcher in (plan.LOCAL, plan.SLURM)
    if by_paceline and last.state in OVER and facts.launches_alive != len(facts.alive):
        wrong.append(f"{len(facts.alive)} programs live, {facts.launches_alive} launches are known to")
    return wrong


def _ledger(facts: Facts) -> list[str]:
    if facts.case.launcher != plan.LEDGER:
        return [] if facts.exclusions == 0 else [f"{facts.exclusions} nodes were put out that nobody named"]
    want = 1 if facts.actions and facts.actions[-1].state == "SUCCEEDED" else 0
    wrong = []
    if (facts.exclusions, facts.exclusions_open) != (want, want):
        wrong.append(f"the ledger has {facts.exclusions} lines ({facts.exclusions_open} open), not {want}")
    if facts.status_excluded != bool(facts.exclusions_open):
        wrong.append("the ledger and the node's state differ")
    return wrong


def facts_of(house: House, case: Case) -> Facts:
    """Read all that is known of one seed."""
    from apps.common.ids import id_write

    slug, node = case.slug, f"node-{case.slug}"
    orders: dict[int, list[OrderFact]] = {}
    about = "(SELECT id FROM runs_run WHERE slug = %s)"
    named = "(SELECT id FROM fleet_node WHERE name = %s)"
    for action, order, kind, state, error, key, job in house.sql(
        "SELECT o.action_id, o.id, o.kind, o.state, o.error, coalesce(t.key, ''), CASE o.launcher WHEN 'SLURM' THEN"
        " coalesce(o.receipt->>'receipt', '') ELSE '' END FROM remediation_order o JOIN"
        " remediation_action a ON a.id = o.action_id LEFT JOIN runs_attempt t ON t.id = o.attempt_id AND o.kind = 'LAUNCH'"
        f" WHERE a.run_id = {about} OR a.node_id = {named} ORDER BY o.id",
        slug,
        node,
    ):
        # Of a job that is put back its other starts are no starts of this order.
        orders.setdefault(action, []).append(
            OrderFact(id_write("ord", order), kind, state, error, key, "" if case.wish == "requeue" else job)
        )
    actions = [
        ActionFact(
            pk,
            kind,
            state,
            outcome,
            began is not None,
            tuple(orders.get(pk, ())),
            tuple(house.insist("GET", f"actions/{id_write('act', pk)}")["look"]) if state == "UNCERTAIN" else (),
        )
        for pk, kind, state, outcome, began in house.sql(
            f"SELECT id, kind, state, outcome, began_at FROM remediation_action WHERE run_id = {about} OR node_id = {named}"
            " ORDER BY id",
            slug,
            node,
        )
    ]
    holes = house.sql(
        "SELECT coalesce(sum(s.seq - coalesce(e.n, 0)), 0) FROM journal_stream s LEFT JOIN (SELECT stream_kind, stream_id,"
        " count(*) n FROM journal_event GROUP BY 1, 2) e USING (stream_kind, stream_id) WHERE (stream_kind = 'RUN' AND"
        f" stream_id = {about}) OR (stream_kind = 'NODE' AND stream_id IN {named}) OR stream_kind = 'SYSTEM'",
        slug,
        node,
    )
    held = house.sql(
        f"SELECT 1 FROM runs_runstatus WHERE run_id = {about} AND open_action_id IS NOT NULL UNION ALL"
        f" SELECT 1 FROM remediation_actionnode WHERE holds AND node_id IN {named}",
        slug,
        node,
    )
    counts = house.sql(
        f"SELECT (SELECT count(*) FROM remediation_launch WHERE run_id = {about} AND state = 'ALIVE'),"
        f" (SELECT count(*) FROM runs_attempt WHERE run_id = {about} AND state = 'OPEN'),"
        f" (SELECT count(*) FROM fleet_exclusion WHERE node_id IN {named} AND ended_at IS NULL),"
        f" (SELECT count(*) FROM fleet_exclusion WHERE node_id IN {named}),"
        f" (SELECT count(*) FROM fleet_nodestatus WHERE node_id IN {named} AND exclusion_id IS NOT NULL)",
        slug,
        slug,
        node,
        node,
        node,
    )[0]
    return Facts(
        case=case,
        actions=tuple(actions),
        evidence=tuple(tuple(words) for words in house.evidence(slug)),
        alive=tuple(house.alive(slug)),
        cancel_answers=tuple(int(p.name.partition("-")[2]) for p in house.run_folder(slug).glob("cancelled-*")),
        log_holes=int(holes[0][0]),
        held=bool(held),
        launches_alive=counts[0],
        attempts_open=counts[1],
        exclusions_open=counts[2],
        exclusions=counts[3],
        status_excluded=bool(counts[4]),
    )
