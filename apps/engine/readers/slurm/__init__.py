"""What Slurm prints, of every version and in every form, as typed records. What is not understood is counted.

`hostlist` names · `times` moments · `states` state words · `scontrol`, `tables`, `objects` listings · `records` what
comes out.
"""

from apps.engine.readers.slurm.hostlist import (
    HostlistMalformed,
    HostlistTooLarge,
    hostlist_compress,
    hostlist_count,
    hostlist_expand,
)
from apps.engine.readers.slurm.objects import objects_read
from apps.engine.readers.slurm.records import ENDED, Listing, SlurmJob, SlurmNode, Unread
from apps.engine.readers.slurm.scontrol import jobs_read, names_apart, nodes_least, nodes_read
from apps.engine.readers.slurm.states import node_state
from apps.engine.readers.slurm.tables import accounting_read, nodes_table_read, summary_read
from apps.engine.readers.slurm.times import SlurmTime, epoch_read, time_read, times_in_order

__all__ = [
    "ENDED",
    "HostlistMalformed",
    "HostlistTooLarge",
    "Listing",
    "SlurmJob",
    "SlurmNode",
    "SlurmTime",
    "Unread",
    "accounting_read",
    "epoch_read",
    "hostlist_compress",
    "hostlist_count",
    "hostlist_expand",
    "jobs_read",
    "names_apart",
    "node_state",
    "nodes_least",
    "nodes_read",
    "nodes_table_read",
    "objects_read",
    "summary_read",
    "time_read",
    "times_in_order",
]
