"""Collectives: which group, which one of its collectives, and what a rank waited."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import OURS, attribute, metric
from otel_rl.vocabulary.metrics import DURATION_BOUNDARIES

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
COMM_EXPOSED: Final = attribute(
    "rl.comm.exposed",
    "double",
    "span",
    "seconds of `rl.device.time` in which the stage's stream stood still for the collectives directly inside: the sum "
    "over its calls that wait of the device's time between their begin and their end; absent where a wait is not seen",
)
COMM_EXPOSED_TIME: Final = metric(
    "rl.comm.exposed",
    "histogram",
    "s",
    "exposed communication of every stage that was timed for it (`rl.comm.exposed`), by `rl.stage`",
    OURS,
    DURATION_BOUNDARIES,
)
DDP_ALL_REDUCE: Final = "ddp_all_reduce"
"""`rl.comm.operation` of a rank's wait for DDP at the end of a backward: all reductions of it together."""
MAKING_A_GROUP: Final = ("new_group", "split_group")
"""`rl.comm.operation` of what makes a process group: a row of the group that is made, without a number in it."""
