"""Everything that writes clusters, nodes, their names and the ledger."""

from apps.fleet.services.ledger import exclusion_end, exclusion_noted, exclusion_open, ledger_note
from apps.fleet.services.names import alias_add, alias_remove, node_apart
from apps.fleet.services.nodes import (
    CLUSTER_LENGTH,
    DEFAULT_CLUSTER,
    MOST_GPUS,
    NAME_LENGTH,
    NAME_RULE,
    PRACTICE_CLUSTER,
    GpuSeen,
    cluster_default,
    cluster_ensure,
    gpus_ensure,
    name_is_usable,
    node_event,
    node_place,
    node_status_update,
    nodes_ensure,
    nodes_heard,
)

__all__ = [
    "CLUSTER_LENGTH",
    "DEFAULT_CLUSTER",
    "MOST_GPUS",
    "NAME_LENGTH",
    "NAME_RULE",
    "PRACTICE_CLUSTER",
    "GpuSeen",
    "alias_add",
    "alias_remove",
    "cluster_default",
    "cluster_ensure",
    "exclusion_end",
    "exclusion_noted",
    "exclusion_open",
    "gpus_ensure",
    "ledger_note",
    "name_is_usable",
    "node_apart",
    "node_event",
    "node_place",
    "node_status_update",
    "nodes_ensure",
    "nodes_heard",
]
