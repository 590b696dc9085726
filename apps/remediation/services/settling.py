"""Taking in what came of an order, and what follows from it."""

from collections.abc import Callable
from datetime import datetime, timedelta

from apps.common.clock import rfc3339
from apps.journal.choices import Source
from apps.journal.services import Log, recording
from apps.remediation.choices import (
    OF_NODES,
    OPENED_FIRST,
    ActionKind,
    ActionState,
    LauncherKind,
    LaunchState,
    OrderKind,
    OrderState,
)
from apps.remediation.models import Action, Launch, Order
from apps.remediation.selectors.preview import EXPIRY
from apps.remediation.selectors.rows import Outcome
from apps.remediation.services.beginning import order_create
from apps.remediation.services.checking import check_order_settle
from apps.remediation.services.ending import give_up
from apps.remediation.services.jobs import job_named_anew
from apps.remediation.services.moving import (
    OrderScene,
    action_log,
    action_move,
    milestone_add,
    order_scene_lock,
    scene_lock,
)
from apps.remediation.services.node_orders import node_order_create, node_order_settle
from apps.remediation.services.ordering import attempt_of_order, stop_reason
from apps.runs.choices import AttemptState, Authority
from apps.runs.launcher import launcher_usable
from apps.runs.selectors import attempt_by_id
from apps.runs.services import attempt_end, attempt_rekey, status_update

BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)
"""Pauses before an unavailable launcher is asked again; after the last one Paceline gives up and says so."""

STANDS_S = 600.0
"""A run that this very action stopped stands until it is started: its launcher is asked for so long, as a controller that
is being updated is away for minutes."""

STANDS_PAUSE_S = 30.0

LOOK_AGAIN_S = 0.25
READ_BACK_S = (1.0, 2.0, 5.0, 10.0, 30.0)
STOP_SLACK_S = 20.0
"""What a stop may take beyond its grace before it counts as not obeyed: a kill that waits for storage takes a while."""

SCHEDULER_SLACK_S = 180.0
"""The same for a scheduler, which has a grace of its own (KillWait) and programs that tidy up a node after a job."""


def order_settle(*, order_id: int, claim: str, outcome: Outcome, now: datetime) -> None:
    """Take in what came of an order that was handed out under `claim`; an outdated claim changes nothing."""
    known = Order.objects.filter(pk=order_id, claim=claim).first()
    if known is None:
        return
    if known.kind in OF_NODES:
        _settle_of_nodes(known, claim, outcome, now=now)
        return
    with recording(now=now) as log:
        scene = order_scene_lock(known)
        order = scene.order
        if order.claim != claim or order.state not in (OrderState.CLAIMED, OrderState.UNCERTAIN):
            return
        _OUTCOMES[outcome.kind](log, scene, outcome, now)


def order_doubt(*, order_id: int, now: datetime, claim: str = "") -> None:
    """Note that whoever had an order in hand died over it: what came of it has to be read back.

    With `claim`, only if it is that one's still: somebody living may have it in hand by now.
    """
    known = Order.objects.filter(pk=order_id, state=OrderState.CLAIMED).first()
    if known is None or (claim and known.claim != claim):
        return
    if known.kind in OF_NODES:
        # Each telling looks first: it is simply told again.
        _settle_of_nodes(known, known.claim, Outcome("NOT_DONE", "whoever told it did not come back"), now=now)
        return
    with recording(now=now) as log:
        scene = order_scene_lock(known)
        if scene.order.state == OrderState.CLAIMED and scene.order.claim == known.claim:
            _uncertain(log, scene, Outcome("UNCERTAIN", "whoever carried it out did not come back"), now)


def order_look_again(*, order_id: int, holder: str, now: datetime) -> None:
    """Note that whoever read an order back died over it: somebody else may do so now."""
    mine = Order.objects.filter(pk=order_id, state=OrderState.UNCERTAIN, holder=holder, not_before__gt=now)
    mine.update(not_before=now, holder="")


def _settle_of_nodes(known: Order, claim: str, outcome: Outcome, *, now: datetime) -> None:
    with recording(now=now) as log:
        scene = scene_lock(known.action_id)
        order = Order.objects.select_for_update(no_key=True).get(pk=known.pk)
        if order.claim == claim and order.state == OrderState.CLAIMED:
            settle = check_order_settle if order.kind == OrderKind.CHECK else node_order_settle
            settle(log, scene, order, outcome, now=now)


def _done(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    action, order = scene.action, scene.order
    _certain(log, scene, outcome, now)
    _order_over(log, scene, OrderState.DONE, outcome, now)
    if order.kind == OrderKind.STOP:
        stopped(log, action, order, now=now)
    else:
        launched(scene, outcome, now=now)


def stopped(log: Log, action: Action, order: Order, *, now: datetime) -> None:
    """Follow a stop that was carried out: the attempt is over, and a restart goes on to its start."""
    assert order.attempt_id is not None
    assert action.run is not None
    about = attempt_by_id(order.attempt_id)
    if about.ended_at is None or about.ended_at > action.requested_at:
        attempt_close(action, order.attempt_id, now=now)
    milestone_add(action, "stopped", text="stopped, read back", now=now)
    if action.kind == ActionKind.STOP_RUN:
        text = f"{action.run.slug} is stopped."
        action_move(log, action, ActionState.SUCCEEDED, text=text, now=now)
        return
    order_create(action, kind=OrderKind.LAUNCH, launcher=order.launcher, attempt_id=None, now=now)


def attempt_close(action: Action, attempt_id: int, *, now: datetime) -> None:
    """End the attempt that an action stopped, for the reason that holds at the latest now."""
    attempt_end(
        attempt_id=attempt_id,
        reason=stop_reason(action, attempt_id),
        authority=Authority.ORDER,
        by=action.requested_by,
        source=Source.LAUNCHER,
        now=now,
    )


def launched(scene: OrderScene, outcome: Outcome, *, now: datetime) -> None:
    """Follow a start that was carried out: what ran before is over, what was started is watched until it reports."""
    action, order, run = scene.action, scene.order, scene.run
    if order.launcher not in OPENED_FIRST:
        old = attempt_by_id(action.expected_attempt_id) if action.expected_attempt_id is not None else None
        if old is not None and (old.state == AttemptState.OPEN or old.reason == stop_reason(action, old.id)):
            attempt_close(action, old.id, now=now)  # its own ranks may have said so already: this is the better word
        attempt_of_order(scene, now=now)
    facts = outcome.facts
    assert order.attempt_id is not None
    token_id = order.token_id
    if order.launcher == LauncherKind.SLURM:
        token_id = _job_taken_in(scene, outcome, now) or token_id
    Launch.objects.get_or_create(
        order=order,
        defaults={
            "run": run,
            "attempt_id": order.attempt_id,
            "launcher": order.launcher,
            "directory": facts.get("directory", ""),
            "boot_id": facts.get("boot_id", ""),
            "pid_namespace": facts.get("pid_namespace", ""),
            "pid": facts.get("pid"),
            "start_ticks": facts.get("start_ticks"),
            "external_id": str(facts.get("receipt", ""))[:200],
            "token_id": token_id,
            "started_at": now,
            "running_at": now if facts.get("job_state") == "RUNNING" else None,
        },
    )
    milestone_add(action, "started", text=outcome.text, now=now)
    if action.kind == ActionKind.RESTART_RUN:
        node_order_create(action, kind=OrderKind.DRAIN, now=now)


def _job_taken_in(scene: OrderScene, outcome: Outcome, now: datetime) -> int | None:
    """Name the attempt after its job, as the job's own reporter does; return the token that the job has from before."""
    order, run, facts = scene.order, scene.run, outcome.facts
    assert order.attempt_id is not None
    if facts.get("key"):
        attempt_rekey(attempt_id=order.attempt_id, key=facts["key"], external_id=facts.get("external_id", ""))
    if str(facts.get("receipt", "")).isdecimal():
        job_named_anew(
            cluster_id=run.cluster_id, run_id=run.pk, job_id=int(facts["receipt"]), name=str(facts.get("job_name", ""))
        )
    status_update(run_id=run.pk, queued=facts.get("job_state") == "PENDING")
    before = Launch.objects.filter(
        run=run, launcher=order.launcher, external_id=facts.get("receipt", ""), state=LaunchState.ALIVE
    ).exclude(order=order)
    token_id = before.exclude(token_id=None).values_list("token_id", flat=True).first()
    # The job goes on, as another attempt: what was known of it goes over to the new launch, its token too.
    before.update(state=LaunchState.GONE, ended_at=now, token_id=None)
    return token_id


def _going_on(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    order, run = scene.order, scene.run
    _certain(log, scene, outcome, now)
    setting = launcher_usable(run.launcher)
    asked_at = order.asked_at or now
    slack_s = SCHEDULER_SLACK_S if order.launcher == LauncherKind.SLURM else STOP_SLACK_S
    limit = timedelta(seconds=(setting.stop_grace_s if setting else 0.0) + slack_s)
    if now - asked_at > limit:
        _order_over(log, scene, OrderState.FAILED, outcome, now)
        if order.kind == OrderKind.LAUNCH:
            give_up(log, scene, f"It could not be started: {outcome.text}.", now)
            return
        text = f"It would not stop: {outcome.text}. Nothing was started."
        action_move(log, scene.action, ActionState.FAILED, text=text, now=now)
        return
    if order.asked_at is None and order.kind == OrderKind.STOP:
        milestone_add(scene.action, "stopping", text=outcome.text, now=now)
    order.asked_at, order.state, order.receipt = asked_at, OrderState.WAITING, {"text": outcome.text, **outcome.facts}
    order.not_before = now + timedelta(seconds=LOOK_AGAIN_S)
    order.save()


def _unavailable(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    order = scene.order
    _certain(log, scene, outcome, now)
    pause_s = _pause_s(order, now)
    if pause_s is None:
        _order_over(log, scene, OrderState.FAILED, outcome, now)
        give_up(log, scene, f"The launcher was not available in {order.tries} tries: {outcome.text}.", now)
        return
    was_told = order.asked_at is not None and bool(order.receipt.get("unheard"))
    order.state, order.error = OrderState.WAITING, outcome.text
    order.receipt = {**order.receipt, "unheard": int(order.receipt.get("unheard", 0)) + 1}
    order.not_before = now + timedelta(seconds=pause_s)
    order.save()
    if not was_told:  # a stop under way is looked at again and again: once is enough
        text = f"The launcher is not available ({outcome.text}); asked again in {pause_s:g} s"
        action_log(log, scene.action, kind="order.settled", text=text, order=order.pk, order_state=order.state)


def _pause_s(order: Order, now: datetime) -> float | None:
    """Return after how long an unavailable launcher is asked again, None if it was asked often enough."""
    if order.asked_at is not None:  # it was taken: what came of it is only looked at, and no try is counted
        if now - order.asked_at > timedelta(seconds=STANDS_S):
            return None
        return BACKOFF_S[min(int(order.receipt.get("unheard", 0)), len(BACKOFF_S) - 1)]
    if order.tries <= len(BACKOFF_S):
        return BACKOFF_S[order.tries - 1]
    since = now - timedelta(seconds=STANDS_S)
    stopped = Order.objects.filter(action_id=order.action_id, kind=OrderKind.STOP, state=OrderState.DONE)
    stands = order.kind == OrderKind.LAUNCH and stopped.filter(settled_at__gte=since).exists()
    return STANDS_PAUSE_S if stands else None


def _refused(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    _certain(log, scene, outcome, now)
    _order_over(log, scene, OrderState.REFUSED, outcome, now)
    give_up(log, scene, f"The launcher refused: {outcome.text}.", now)


def _not_done(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    """Read back: it never began and never will, so that a new try is safe."""
    order = scene.order
    _certain(log, scene, outcome, now)
    long_ago = order.kind == OrderKind.LAUNCH and order.claimed_at is not None and now - order.claimed_at > EXPIRY
    if order.tries > len(BACKOFF_S) or long_ago:
        _order_over(log, scene, OrderState.FAILED, outcome, now)
        since = f"since {rfc3339(order.claimed_at)}" if long_ago else f"in {order.tries} tries"
        give_up(log, scene, f"It did not begin {since}: {outcome.text}.", now)
        return
    order.state, order.error, order.not_before = OrderState.WAITING, outcome.text, now
    order.save()


def _uncertain(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    action, order = scene.action, scene.order
    looks = int(order.receipt.get("looks", 0))
    pause_s = READ_BACK_S[min(looks, len(READ_BACK_S) - 1)]
    was_certain = order.state != OrderState.UNCERTAIN
    order.state, order.error = OrderState.UNCERTAIN, outcome.text
    order.receipt = {**order.receipt, "looks": looks + 1}
    order.not_before, order.holder = now + timedelta(seconds=pause_s), ""
    order.save()
    if was_certain:
        text = f"Nobody knows yet whether “{order.kind.lower()}” was carried out: {outcome.text}. It is read back."
        action_move(log, action, ActionState.UNCERTAIN, text=text, now=now)


def _certain(log: Log, scene: OrderScene, outcome: Outcome, now: datetime) -> None:
    if scene.action.state == ActionState.UNCERTAIN:
        text = f"Read back: {outcome.text or outcome.kind.lower()}"
        action_move(log, scene.action, ActionState.RUNNING, text=text, now=now)


def _order_over(log: Log, scene: OrderScene, state: str, outcome: Outcome, now: datetime) -> None:
    order = scene.order
    order.state, order.settled_at = state, now
    if state == OrderState.DONE:
        order.receipt, order.error = {"text": outcome.text, **outcome.facts}, ""
    else:
        order.error = outcome.text
    order.save()
    text = f"Order {order.kind.lower()} {OrderState(state).label}: {outcome.text}"
    action_log(log, scene.action, kind="order.settled", text=text, order=order.pk, order_state=state)


_OUTCOMES: dict[str, Callable[[Log, OrderScene, Outcome, datetime], None]] = {
    "DONE": _done,
    "GOING_ON": _going_on,
    "UNAVAILABLE": _unavailable,
    "REFUSED": _refused,
    "NOT_DONE": _not_done,
    "UNCERTAIN": _uncertain,
}
