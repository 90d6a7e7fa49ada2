"""Which collectives all ranks leave together, so that their durations show who waited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.records import Value
from otel_rl.runs.spans import integer, text

OF_ALL_RANKS: Final = (
    "gather", "gather_object", "gather_for_metrics", "reduce", "wait_for_everyone", *v.MAKING_A_GROUP,
)  # fmt: skip
"""Accelerate's collectives, which all ranks leave together, and those that make a group. Torch's own of these names
have a root, whose time in them is waiting, too."""
SYMMETRIC: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Operations that no rank leaves before every rank has come; torch's names without underscores."""
SMALL_BROADCAST: Final = 64 << 10
"""A broadcast of at most these bytes takes no time, so a rank that is in it for longer waits, as in that of DDP's
buffers. Each rank leaves a larger one when it has received or sent it."""


def is_met(attributes: Mapping[str, object]) -> bool:
    """Return whether ranks leave a collective together; they leave the wait for an asynchronous one one by one."""
    operation = str(attributes.get(v.COMM_OPERATION, ""))
    if attributes.get(v.COMM_ASYNC) is True:
        return operation == v.DDP_ALL_REDUCE
    return operation in OF_ALL_RANKS or is_symmetric(operation) or _is_small_broadcast(operation, attributes)


def is_symmetric(operation: str) -> bool:
    """Return whether all ranks leave the operation together; broadcast, p2p and unknown ones do not.

    The name may be torch's, a backend's or the flight recorder's: `all_gather_single`, `gloo:all_reduce`.
    """
    name = operation.rpartition(":")[2].replace("_", "").lower()
    return any(known in name for known in SYMMETRIC)


def _is_small_broadcast(operation: str, attributes: Mapping[str, object]) -> bool:
    size = attributes.get(v.COMM_BYTES)
    return "broadcast" in operation and isinstance(size, int) and 0 < size <= SMALL_BROADCAST


def shows_waits(attributes: Mapping[str, Value]) -> bool:
    """Return whether the durations of a collective on its ranks show which of them waited.

    It must be known which of the other ranks' collectives it is, and the host must not only launch it. A group is made
    once, and a rank that is not in it has no peers there.
    """
    operation = text(attributes, v.COMM_OPERATION)
    is_matched = bool(integer(attributes, v.COMM_SEQUENCE)) or operation == v.DDP_ALL_REDUCE
    is_matched |= operation in v.MAKING_A_GROUP and bool(text(attributes, v.COMM_GROUP))
    return is_matched and is_met(attributes) and attributes.get(v.CLOCK) != "host"
