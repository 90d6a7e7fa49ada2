"""Collectives: which group, which one of its collectives, and what a rank waited."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.row import attribute

COMM_GROUP: Final = attribute(
    "rl.comm.group", "string", "span", "the process group: its description and name, the same on all of its ranks"
)
COMM_GROUP_SIZE: Final = attribute("rl.comm.group_size", "int", "span", "ranks of the process group")
COMM_GROUP_KIND: Final = attribute(
    "rl.comm.group_kind", "string", "metric", "description of the process group: `default_pg`, `mesh_dp`, ..."
)
COMM_SEQUENCE: Final = attribute(
    "rl.comm.sequence",
    "int",
    "span",
    "which collective of its group, from 1: the same number is the same collective on all ranks of the group",
)
COMM_ASYNC: Final = attribute(
    "rl.comm.async",
    "boolean",
    "span",
    "true where the duration is that of the wait for a collective that ran beside the computation",
)
COMM_WAIT: Final = attribute(
    "rl.comm.wait",
    "double",
    "span",
    "seconds at the end of a backward in which this rank only waited for DDP's reduction; part of `rl.comm.time`",
)
DDP_ALL_REDUCE: Final = "ddp_all_reduce"
"""`rl.comm.operation` of a rank's wait for DDP at the end of a backward: all reductions of it together."""
