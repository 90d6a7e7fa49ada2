"""An estimate of what communicators take of a device: the memory below torch that is new once they have been made.

NCCL and its like allocate their buffers themselves, mostly with the first collective of a group. What else of the
device came into use in that moment, also by other processes, is in the estimate.
"""

from __future__ import annotations

from otel_rl import vocabulary
from otel_rl.analysis.memory import non_torch
from otel_rl.comm.memory import comm
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.records import Point


def begin() -> None:
    """Read how full the device is before a communicator may be made, if one is in use."""
    comm.before_making = _read()


def end() -> None:
    """Add what has come into use since ``begin``.

    Emits: ``rl.memory.device.comm.estimate`` (gauge, By), where it grew. Cost: two calls of the driver a group.
    """
    before, comm.before_making = comm.before_making, None
    after = _read() if before is not None else None
    if before is not None and after is not None and after > before:
        comm.buffers += after - before
        state.add(Point(vocabulary.COMM_BUFFERS, comm.buffers, state.now()))


def give_up() -> None:
    """Forget what ``begin`` has read: the communicator was not made."""
    comm.before_making = None


def _read() -> int | None:
    found = probes.read_device(None) if probes.read_device is not None else None
    if found is None or probes.device is None:
        return None
    return non_torch(probes.device.usage(), found.reserved)
