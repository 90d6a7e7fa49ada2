"""How long a rank waits for DDP at the end of its backward, where no collective of DDP is seen.

DDP's reducer waits for its reductions in a callback at the end of the backward, which it registers when the last
gradient has come. One that is registered before, from a hook on the loss, runs right in front of it, and one that this
one registers in turn runs right after it: between the two there is nothing but the wait. It is open meanwhile, so the
journal of a run that hangs in it says so. Cost: 35 us a backward, however many parameters there are.

Source: torch 2.13 to 2.15, ``nn/parallel/distributed.py`` and ``torch/csrc/distributed/c10d/reducer.cpp``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.comm.collectives import Collective
from otel_rl.comm.groups import group_of
from otel_rl.comm.memory import comm
from otel_rl.guard import guard
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.memory import tracing

OPERATION = vocabulary.DDP_ALL_REDUCE


class _Backward:
    """One backward whose end is watched."""

    __slots__ = ("collective", "ended", "group", "handle", "is_split")

    def __init__(self, group: Any) -> None:
        self.group = group
        self.handle: Any = None
        self.is_split = False
        """A backward ran inside it: DDP may have waited in the middle."""
        self.collective: Collective | None = None
        """The wait, from when the last local gradient had come: open meanwhile, so that a hang in it is journaled."""
        self.ended = 0

    def begin(self, gradient: Any) -> None:
        with guard("watch the end of a backward"):
            _at_the_end(self.wait)

    def wait(self) -> None:
        """Open the wait, now that all of this rank's own work is done, and ask for its end."""
        with guard("watch the end of a backward"):
            _at_the_end(self.end)
            if not self.is_split:
                # Without a number: whether a rank sees its wait may differ between ranks, and all that follow would be
                # misnumbered.
                self.collective = Collective(OPERATION, 0, group_of(self.group), is_wait=True)
            comm.seen_in = None  # only what others call from now on counts

    def end(self) -> None:
        self.ended = monotonic_ns()


def _at_the_end(function: Callable[[], None]) -> None:
    """Make autograd call a function after those that it was given before; for the backward that runs now."""
    sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(function)


class _Open(threading.local):
    backward: _Backward | None = None


_open = _Open()


def wrapped(model: Any) -> None:
    comm.wrapped.add(model)


def _reducing() -> list[Any]:
    """Find the models whose gradients DDP may reduce now; none between the micro-batches of an accumulation.

    The forward decides, in which the reducer is prepared: a backward inside of ``no_sync`` reduces where its forward
    was outside, which ``require_forward_param_sync`` shows. A forward without gradients takes that back, but not what
    the reducer was prepared for, so outside of ``no_sync`` every model may reduce; one that does not waits for nothing.
    """
    return [one for one in comm.wrapped if one.require_backward_grad_sync or one.require_forward_param_sync]


def watch(tensors: Any) -> None:
    """Watch the backward that begins now on this thread, if DDP reduces in it.

    Args:
        tensors: what the backward begins at. Only one tensor is watched, and only on the host: on a device the wait is
            one of its streams, which no clock of the host can see. Nor where models of several process groups could be
            meant: which of them takes part is not known. Models of one group are no matter: DDP waits for each of them
            between our two callbacks.
    """
    cancel()
    if state.identity.world_size < 2 or not comm.wrapped or _is_compiled_backward():
        return
    if type(tensors) in (list, tuple):
        if len(tensors) != 1:
            return
        tensors = tensors[0]
    groups = {id(model.process_group): model.process_group for model in _reducing()}
    if len(groups) != 1 or not getattr(tensors, "requires_grad", False) or tensors.device.type != "cpu":
        return
    backward = _Backward(*groups.values())
    backward.handle = tensors.register_hook(backward.begin)
    _open.backward = backward


def split() -> None:
    if _open.backward is not None:
        _open.backward.is_split = True


def cancel() -> None:
    """Watch no longer; the loss keeps nothing of ours, and a wait that is open leaves a record only if it must."""
    backward, _open.backward = _open.backward, None
    if backward is not None:
        backward.handle.remove()
        if backward.collective is not None:
            backward.collective.forget()


def describe(stage: Any) -> dict[str, Value] | None:
    """Return what the backward that ends now knows of its collectives, and record its wait for DDP as one."""
    try:
        return _described(stage, _open.backward)
    finally:
        cancel()


def _described(stage: Any, backward: _Backward | None) -> dict[str, Value] | None:
    if state.identity.world_size < 2:
        return None
    if backward is None and not _reducing():
        # With DDP there is nothing to wait for now; what others wait for is hidden, unless it was seen. Who calls them
        # where they are seen may call none: FSDP between the micro-batches of an accumulation.
        comm.in_backward |= comm.seen_in is stage
        return None if comm.wrapped or comm.in_backward else {vocabulary.COMM_HIDDEN: True}
    if backward is None or backward.is_split or backward.collective is None or not backward.ended:
        return {vocabulary.COMM_HIDDEN: True}
    if comm.seen_in is stage:  # not DDP's: FSDP2 ends the backward of another model with collectives of its own
        return None
    collective, backward.collective = backward.collective, None  # from here on it is to be recorded
    collective.stage, collective.ended = (
        stage,
        backward.ended,
    )  # a thread of autograd's own may not have known the stage
    state.add(collective)  # first this: at every moment the flusher finds it in the queue or among the open ones
    tracing.open.pop(collective, None)
    return {vocabulary.COMM_WAIT: (collective.ended - collective.began) / 1e9}


def _is_compiled_backward() -> bool:
    """Return whether autograd itself is compiled: it would trace the hook."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))
