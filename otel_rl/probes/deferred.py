"""Numbers that live on a device, read without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from otel_rl.runtime import state

LIMIT = 256
"""Numbers that may wait for their device; more are dropped and counted."""

Use = Callable[[list[float]], object]


def read(tensors: Sequence[Any], use: Use) -> None:
    """Call ``use`` with the numbers of one-element tensors as soon as they can be had without waiting.

    On the host that is now. On a device they are copied into pinned memory on the current stream, an event marks the
    end of the copy, and ``resolve`` hands the numbers over once the event has passed. Must run on the thread that
    launches the work. Cost: 1 us a tensor on the host; on a device two small kernels, one copy and one event.
    """
    kind = tensors[0].device.type
    if kind == "cpu":
        use([float(tensor) for tensor in tensors])
        return
    import torch

    if len(state.training.deferred) >= LIMIT:
        state.dropped["metrics", "device_too_late"] += 1
        return
    device = getattr(torch, kind)
    if getattr(device, "is_current_stream_capturing", lambda: False)():
        return  # a copy recorded into a graph would run again with every replay
    values = torch.stack([tensor.detach().reshape(()).float() for tensor in tensors])
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    event = device.Event()
    event.record()
    state.training.deferred.append((event, host, use))


def resolve() -> None:
    """Hand over every number whose copy has ended, in order; called between stages on the training thread."""
    waiting = state.training.deferred
    while waiting and waiting[0][0].query():
        _, host, use = waiting.popleft()
        use(host.tolist())
