"""Whose report it is: an attempt, or a node, which appears when it is first heard."""

from dataclasses import dataclass
from datetime import datetime

from apps.common.errors import Forbidden, NotFound
from apps.fleet.selectors import cluster_by_name, node_by_code
from apps.fleet.services import cluster_default, cluster_ensure, nodes_ensure
from apps.runs.selectors import attempt_by_code, run_by_id
from apps.telemetry.choices import OwnerKind, ScopeKind


@dataclass(frozen=True, slots=True)
class Target:
    """Within what a report's number is counted, whose series it feeds, and in which cluster that is."""

    scope_kind: str
    scope_id: int
    owner_kind: str
    owner_id: int
    cluster_id: int


def target_of_attempt(code: str) -> Target:
    """Return the attempt that an id names as a target; an ended one takes reports too, as late ones.

    Raises:
        NotFound: there is none.
    """
    attempt = attempt_by_code(code)
    cluster_id = run_by_id(attempt.run_id).cluster_id
    return Target(ScopeKind.ATTEMPT, attempt.id, OwnerKind.ATTEMPT, attempt.id, cluster_id)


def target_of_node(code: str, *, cluster_id: int | None, now: datetime) -> Target:
    """Return the node that `CLUSTER:NAME` or NAME means as a target, made at first need.

    `cluster_id` is the caller's cluster, None for a caller who may report for all.

    Raises:
        Unprocessable: the name cannot be one.
        Conflict: several clusters know the name.
        Forbidden: it names another cluster than the caller's.
    """
    cluster, sign, name = code.rpartition(":")
    try:
        node = node_by_code(code if sign or code.startswith("node_") else name, cluster_id=cluster_id)
    except NotFound:
        if code.startswith("node_"):
            raise
        owner = _cluster(cluster, cluster_id=cluster_id, now=now)
        return _node(nodes_ensure(cluster_id=owner, names=[name], now=now)[name], owner)
    return _node(node.id, node.cluster_id)


def _node(node_id: int, cluster_id: int) -> Target:
    return Target(ScopeKind.NODE, node_id, OwnerKind.CLUSTER, cluster_id, cluster_id)


def _cluster(name: str, *, cluster_id: int | None, now: datetime) -> int:
    if cluster_id is None:
        return cluster_ensure(name=name, now=now) if name else cluster_default(now=now)
    if name:
        try:
            same = cluster_by_name(name).id == cluster_id
        except NotFound:
            same = False
        if not same:
            raise Forbidden("This token is for another cluster.")
    return cluster_id
