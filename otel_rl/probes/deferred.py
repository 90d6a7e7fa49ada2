"""Numbers in tensors, read without waiting for a device and away from the training thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from otel_rl.clock import monotonic, sleep
from otel_rl.probes.device_time import is_capturing
from otel_rl.probes.host_arrays import of_host
from otel_rl.probes.memory import of_parents, probes
from otel_rl.process.memory import Memory
from otel_rl.process.state import QUEUE_LIMIT, state
from otel_rl.records import Count, Deferred, Labels, Point

LIMIT = 256
"""Groups of numbers that may wait for their device; more are dropped and counted."""
DRAIN_S = 1.0
"""The end of a journal waits this long for numbers that are on their way from a device."""

Use = Callable[[list[float]], Iterable[Any]]
"""Makes records of the numbers; runs in the flusher."""


Pending = tuple[Any, Any, Sequence[Any], Callable[[Any], Iterable[Any]]]
"""Module of the device, event, tensors of the host, and what makes records of them."""


@dataclass(eq=False)
class Deferral(Memory):
    """Numbers on their way from a device."""

    pending: deque[Pending] = field(default_factory=deque)
    alone: threading.Lock = field(default_factory=threading.Lock)

    def after_fork_in_child(self) -> None:
        of_parents.append(self.pending)
        self.renew()


deferral = Deferral.keep("deferral")


def read(tensors: Sequence[Any], use: Use) -> bool:
    """Record what ``use`` makes of the sums of some tensors, as soon as they can be had without pending.

    Tensors of the host are read by the flusher: they must not change meanwhile. On a device they are summed and
    copied into pinned memory on the current stream, an event marks the end of the copy, and ``resolve`` hands the
    numbers over once the event has passed; so this must run on the thread that launches the work.

    Returns:
        Whether the numbers will come.

    Cost: 0.3 us on the host; on a device two small kernels, one copy and one event.
    """
    for tensor in tensors:
        if hasattr(tensor, "placements"):
            return False  # to read a DTensor is a collective
    kind = tensors[0].device.type
    if kind == "cpu":
        state.add(Deferred(_use_host, (tensors, use)))
        return True

    def sums() -> Any:
        import torch

        return torch.stack([tensor.detach().sum().float() for tensor in tensors])

    return send(kind, sums, use)


def follow(use: Use) -> None:
    """Record what ``use`` makes, of no numbers, as soon as all that were asked for before have come.

    Cost: 1 us at most.
    """
    pending = deferral.pending
    try:
        device, event, _, _ = pending[-1]
    except IndexError:
        state.add(Deferred(use, ([],)))
    else:
        pending.append((device, event, [], use))


def gauge(name: str, value: Any, labels: Labels) -> None:
    """Record a number, or that of a tensor of one element, as the gauge of this moment; cost as of ``read``."""
    time_ns = state.now()

    def use(values: list[float]) -> tuple[Point]:
        return (Point(name, values[0], time_ns, labels),)

    if hasattr(value, "detach"):
        read((value.detach(),), use)
    else:
        state.add(use([float(value)])[0])


def send(kind: str, make: Callable[[], Any], use: Callable[[Any], Iterable[Any]]) -> bool:
    """Record what ``use`` makes of a small tensor of a device, given as a list, as soon as it can be had.

    Returns:
        Whether the numbers will come.
    """
    if _is_full():
        state.drop("metrics", "device_too_late")
        return False
    return _send(kind, lambda: [make()], lambda hosts: use(hosts[0].tolist()))


def copy(kind: str, tensors: Sequence[Any], use: Callable[[Any], Iterable[Any]]) -> bool:
    """Record what ``use`` makes of copies of a device's tensors, as tensors of the host, as soon as they can be had.

    Returns:
        Whether they will come; who asked counts what does not.

    Cost: one copy a tensor and one event; no thread of ours turns them into Python numbers.
    """
    return not _is_full() and _send(kind, lambda: tensors, use)


def _is_full() -> bool:
    """Hand over what has come, since a loop without a framework does not; return whether no more may be pending."""
    _hand_over_if_mine()
    return len(deferral.pending) >= LIMIT


def _send(kind: str, make: Callable[[], Sequence[Any]], use: Callable[[Any], Iterable[Any]]) -> bool:
    import torch

    device = getattr(torch, kind)
    if kind == "mps" or is_capturing(device):
        return False  # its events know no streams; a copy recorded into a graph would run again with every replay
    hosts = []
    for values in make():
        host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
        hosts.append(host.copy_(values, non_blocking=True))
    event = device.Event()
    event.record(device.current_stream(values.device))  # the one that copies: the current device may be another
    deferral.pending.append((device, event, hosts, use))
    return True


def resolve() -> None:
    """Hand over every number whose copy has ended, in order; called between stages.

    While one thread does, another leaves it to that: it could take numbers that only the one before them had asked for.
    What a thread has timed on the device it completes itself. Once there are steps only their thread asks, since
    another one's query could break the capture of a graph that it has begun, and never while it captures. Nothing is
    handed over while the queue is full: who asked counts on what comes.
    """
    if probes.device is not None:
        probes.device.clock.resolve()
    _hand_over_if_mine()


def _hand_over_if_mine() -> None:
    if state.step_thread in (0, get_ident()):
        _hand_over()


def _hand_over() -> None:
    pending, alone = deferral.pending, deferral.alone
    if not pending or not alone.acquire(blocking=False):
        return
    try:
        while pending and len(state.queue) < QUEUE_LIMIT and not is_capturing(pending[0][0]) and pending[0][1].query():
            _, _, hosts, use = pending[0]
            if not state.add(Deferred(use, (hosts,))):
                break  # another thread has filled it
            pending.popleft()
    finally:
        alone.release()


def drain(timeout_s: float = DRAIN_S) -> None:
    """Hand over what is still on its way, waiting for the device at most so long: nothing will come after the end."""
    deadline = monotonic() + timeout_s
    while True:
        if probes.device is not None:
            probes.device.clock.resolve()
        _hand_over()
        if not _is_pending() or monotonic() >= deadline:
            return
        sleep(0.001)


def _is_pending() -> bool:
    return bool(deferral.pending) or (probes.device is not None and probes.device.clock.is_pending)


def _use_host(tensors: Sequence[Any], use: Use) -> Iterable[Count | Point]:
    return use([_sum(tensor) for tensor in tensors])


def _sum(tensor: Any) -> float:
    """Sum by numpy: torch starts threads of its own for a large tensor, to sum it or to copy it."""
    return float(tensor) if tensor.numel() == 1 else float(of_host(tensor).sum())
