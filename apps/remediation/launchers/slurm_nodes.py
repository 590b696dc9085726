"""Draining and resuming nodes so that nobody else's decision is overwritten or lifted.

A drain of ours carries our mark in its reason. Each call looks first, does what is missing, and reads back, so that it
may be carried out again at any time.
"""

from collections.abc import Iterable

from apps.engine.readers.slurm import SlurmNode
from apps.remediation.launchers.slurm_cli import SlurmCli
from apps.remediation.launchers.slurm_jobs import names_spelled
from apps.remediation.launching import LaunchRefused, LaunchUncertain, Receipt
from apps.remediation.selectors.rows import NodeTarget, OrderInHand

OF_ITSELF = frozenset({"", "Not responding", "Node unexpectedly rebooted"})
"""Reasons that Slurm writes by itself: no person's words are lost."""


def drain(cli: SlurmCli, order: OrderInHand) -> Receipt:
    """Drain an order's nodes; one that others keep out already stays theirs, and the receipt says so.

    Raises: LaunchRefused, LaunchUnavailable, LaunchUncertain.
    """
    done, others = list[NodeTarget](), list[str]()
    found, unknown = _look(cli, order.targets)
    for target, node in found:
        if node.is_out and node.reason.startswith(target.mark):
            done.append(target)
        elif (node.is_out and not _is_ours(node, target)) or (
            not node.is_out and node.is_down and node.reason not in OF_ITSELF
        ):
            others.append(_words(node))
        else:
            cli.change("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={target.reason}")
            _read_back(cli, node.name, out=True)
            done.append(target)
    said = [f"{', '.join(target.name for target in done)} drained, read back"] if done else []
    return _receipt(done, [*said, *(f"{text}; left as it is" for text in others), *unknown])


def resume(cli: SlurmCli, order: OrderInHand) -> Receipt:
    """Bring an order's nodes back into service where the present drain is ours.

    Raises: LaunchRefused, LaunchUnavailable, LaunchUncertain.
    """
    done, said = list[NodeTarget](), list[str]()
    found, unknown = _look(cli, order.targets)
    for target, node in found:
        if not node.is_out:
            said.append(f"{node.name} is in service in Slurm already")
        elif not _is_ours(node, target):
            said.append(f"{_words(node)}; it is not ours to lift")
        else:
            # Unlike RESUME it leaves a node that is down as it is.
            cli.change("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
            _read_back(cli, node.name, out=False)
            said.append(f"{node.name} is in service again, read back")
            done.append(target)
    return _receipt(done, [*said, *unknown])


def _is_ours(node: SlurmNode, target: NodeTarget) -> bool:
    """Return whether a drain is ours, by the present line of the ledger or by an earlier one that could not be lifted then."""
    return node.reason.startswith((target.mark, *target.marks))


def _look(cli: SlurmCli, targets: Iterable[NodeTarget]) -> tuple[list[tuple[NodeTarget, SlurmNode]], list[str]]:
    known = cli.node_names()
    found: list[tuple[NodeTarget, SlurmNode]] = []
    unknown: list[str] = []
    for target in targets:
        spelled, _ = names_spelled(known, [target.names])
        node = cli.nodes(spelled[0]).get(spelled[0]) if spelled else None
        if node is None:
            unknown.append(f"Slurm does not know {target.name}")
        else:
            found.append((target, node))
    if not found:
        raise LaunchRefused("; ".join(unknown) or "no node is named")
    return found, unknown


def _read_back(cli: SlurmCli, name: str, *, out: bool) -> None:
    node = cli.nodes(name).get(name)
    if node is None or node.is_out != out:
        state = node.state if node is not None else "gone"
        raise LaunchUncertain(f"{name} was told, but Slurm shows it as {state}")


def _words(node: SlurmNode) -> str:
    by = f" by {node.reason_by}" if node.reason_by else ""
    at = f" at {node.reason_at.at:%Y-%m-%d %H:%M} UTC" if node.reason_at.at is not None else ""
    why = f": “{node.reason}”" if node.reason else ""
    return f"{node.name} is {'out' if node.is_out else 'down'} already{by}{at}{why}"


def _receipt(done: list[NodeTarget], said: list[str]) -> Receipt:
    return Receipt("; ".join(said), {"exclusions": [target.exclusion_id for target in done]})
