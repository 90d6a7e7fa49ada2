"""What is known of process groups, and of collectives on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from otel_rl.process.memory import Memory

if TYPE_CHECKING:
    from otel_rl.comm.collectives import Collective
    from otel_rl.comm.groups import Group
    from otel_rl.trace.stage import Stage


@dataclass(eq=False)
class Communication(Memory):
    """Memory of this room and of the hooks of collectives."""

    worlds: int = 0
    """How many default process groups this process has made; the names of groups begin anew with each."""
    groups: dict[int, tuple[ref[Any], Group]] = field(default_factory=dict)
    """Keys are the ``id()`` of the process group."""
    kinds: set[str] = field(default_factory=set)
    """Descriptions of groups that are labels of metrics."""
    launched: dict[int, tuple[ref[Any], Collective]] = field(default_factory=dict)
    """Keys are the ``id()`` of what the program can wait for."""
    seen_in: Stage | None = None
    """The stage of the last collective."""
    in_backward: bool = False
    """Whether a collective was seen in a backward that is not DDP's."""
    before_making: int | None = None
    """Bytes of the device in use below torch before the communicator that is being made."""
    buffers: int = 0
    """Estimate of what communicators take of the device, bytes."""
    wrapped: WeakSet[Any] = field(default_factory=WeakSet)
    """Models whose gradients DDP reduces."""


comm = Communication.keep("comm")
