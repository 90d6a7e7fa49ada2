"""PyTorch: backward, optimizer, checkpoints, data loading and the collectives that Python sees.

Runs in every process that imports torch. Source: torch 2.13 to 2.15, lines in the facts on training, section 1.
What Python cannot see here: collectives of DDP, DTensor and functional collectives; stages that contain them say so
with ``rl.comm.hidden``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic_ns
from types import ModuleType
from typing import Any

from opentelemetry.context import get_current

from otel_rl import vocabulary
from otel_rl.current import SPAN_KEY
from otel_rl.guard import guard, say
from otel_rl.patching import Attachment, Hook
from otel_rl.probes.memory import cuda_reader, use_memory_reader
from otel_rl.records import Value
from otel_rl.runtime import state
from otel_rl.spans import Stage, current_stage, record_finished
from otel_rl.steps import know_attempt

PACKAGE = "torch"
SUPPORTS = ">=2.4"

ATTEMPT_KEY = "otel_rl/attempt"
ATTEMPT_LIMIT_S = 5.0

INPUT_POSITION = {
    "all_reduce": 0, "reduce": 0, "broadcast": 0, "broadcast_object_list": 0, "barrier": 0, "monitored_barrier": 0,
    "all_gather": 1, "all_gather_object": 1, "all_gather_into_tensor": 1, "all_gather_single": 1,
    "reduce_scatter": 1, "reduce_scatter_tensor": 1, "reduce_scatter_single": 1,
    "all_to_all": 1, "all_to_all_single": 1, "gather": 0, "gather_object": 0, "scatter": 1, "scatter_object_list": 1,
    "send": 0, "recv": 0, "send_object_list": 0, "recv_object_list": 0,
}  # fmt: skip
"""Collectives and the position of this rank's input among their arguments; older versions lack some."""


DCP = "torch.distributed.checkpoint"
DATA = ((vocabulary.IDLE_REASON, "data"),)


# --- what the hooks record --------------------------------------------------------------------------------------------


def _backward_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """No stage for a backward inside a backward: checkpointing recomputes with one, perhaps on another thread."""
    import torch

    return None if torch._C._current_graph_task_id() != -1 else vocabulary.BACKWARD


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Value] | None:
    """DDP and FSDP reduce gradients inside the backward, where Python does not see it."""
    return {vocabulary.COMM_HIDDEN: True} if state.identity.world_size > 1 else None


def _save_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """No stage for what a thread without a place writes while a checkpoint is open: it writes a part of that one."""
    is_bare = get_current().get(SPAN_KEY) is None
    if is_bare and any(
        isinstance(opened, Stage) and opened.name == vocabulary.CHECKPOINT for opened in tuple(state.open)
    ):
        return None
    return vocabulary.CHECKPOINT


def _saving_goes_on(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Record the checkpoint when its future is done; the call itself was only its staging."""
    future = result if isinstance(result, Future) else getattr(result, "upload_completion", None)
    span = _take_staged()
    if span is None:
        return
    if not isinstance(future, Future):
        span.close(monotonic_ns())
        return

    def done(finished: Future[Any]) -> None:
        with guard("end an asynchronous checkpoint"):
            error = None if finished.cancelled() else finished.exception()
            if error is not None:
                span.fail(error)
            span.close(monotonic_ns())

    future.add_done_callback(done)


def _begin_async_save(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Open the checkpoint that lasts until its future is done; it is current while it is staged."""
    span = Stage(
        vocabulary.CHECKPOINT, {vocabulary.CHECKPOINT_ASYNC: True, vocabulary.CHECKPOINT_FORMAT: "dcp"}, coarse=True
    )
    state.training.staging[threading.get_ident()] = span.__enter__()


def _take_staged() -> Stage | None:
    """Take the checkpoint whose call has ended: what follows is not inside it."""
    span: Stage | None = state.training.staging.pop(threading.get_ident(), None)
    if span is not None and span.token is not None:
        token, span.token = span.token, None
        token.var.reset(token)
    return span


def _async_save_failed(args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> None:
    span = _take_staged()
    if span is not None:
        span.fail(error)
        span.close(monotonic_ns())


def _process_group_made(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    join_process_group()


def join_process_group() -> None:
    """Learn rank and attempt from the default process group: rank 0 puts the attempt into its store, others read it.

    Once per process group, on the thread that makes it; at most 5 s where rank 0 is not instrumented.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    rank, world_size = dist.get_rank(), dist.get_world_size()
    state.identify(rank=rank, world_size=world_size)
    if world_size < 2:
        return
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        if not state.identity.known:
            know_attempt()
        store.set(ATTEMPT_KEY, f"{state.identity.attempt_id} {state.identity.run_id}")
        return
    deadline = monotonic_ns() + int(ATTEMPT_LIMIT_S * 1e9)
    while not store.check([ATTEMPT_KEY]):
        if monotonic_ns() > deadline:
            say(
                "otel_rl: rank 0 did not say its attempt within %.0f s (is it instrumented?); rank %d reports alone",
                ATTEMPT_LIMIT_S,
                rank,
            )
            return
        threading.Event().wait(0.02)
    attempt_id, _, run_id = store.get(ATTEMPT_KEY).decode().partition(" ")
    know_attempt(attempt_id, run_id)


HOOKS = (
    Hook(target="torch.distributed.distributed_c10d:init_process_group", after=_process_group_made),
    Hook(target="torch.distributed:init_process_group", after=_process_group_made),
    Hook(target="torch.autograd:backward", stage=_backward_stage, capture=_hidden),
    Hook(
        target="torch.serialization:save",
        stage=_save_stage,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "torch.save"),),
    ),
    Hook(target="torch:save", stage=_save_stage, attributes=((vocabulary.CHECKPOINT_FORMAT, "torch.save"),)),
    Hook(
        target=f"{DCP}.state_dict_saver:save",
        stage=_save_stage,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "dcp"),),
    ),
    Hook(target=f"{DCP}:save", stage=_save_stage, attributes=((vocabulary.CHECKPOINT_FORMAT, "dcp"),)),
    Hook(
        target=f"{DCP}:async_save",
        stage=vocabulary.CHECKPOINT_STAGING,
        before=_begin_async_save,
        after=_saving_goes_on,
        failed=_async_save_failed,
    ),
    Hook(
        target="torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
        stage=vocabulary.IDLE,
        attributes=DATA,
    ),
    *(
        Hook(target=f"{module}:{name}", collective=position, optional=True)
        for module in ("torch.distributed.distributed_c10d", "torch.distributed")
        for name, position in INPUT_POSITION.items()
    ),
)
# --- what is attached by torch's own means ----------------------------------------------------------------------------


def _know_compiling(torch: ModuleType) -> Callable[[], object]:
    """Keep out of compiled regions, and read device memory once there is a device."""
    before = state.is_compiling
    state.is_compiling = torch.compiler.is_compiling
    backend = next(
        (getattr(torch, name) for name in ("cuda", "npu") if hasattr(getattr(torch, name, None), "memory")), None
    )
    if backend is not None and hasattr(backend.memory, "memory_stats_as_nested_dict"):
        use_memory_reader(cuda_reader(backend))

    def detach() -> None:
        state.is_compiling = before
        use_memory_reader()

    return detach


def _time_optimizers(module: ModuleType) -> Callable[[], object]:
    """Time optimizers that no framework wraps, by torch's global step hooks.

    Fires once per optimizer step, 100 times per backward where the optimizer runs inside it (measured): those belong
    to the backward, and those inside a framework's own optimizer stage to that.
    """
    begun = threading.local()

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        with guard("begin an optimizer step"):
            stage = current_stage()
            inside = stage is not None and stage.name in (vocabulary.OPTIMIZER, vocabulary.BACKWARD)
            begun.at = 0 if inside or not state.on or state.is_compiling() else monotonic_ns()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        with guard("end an optimizer step"):
            at, begun.at = getattr(begun, "at", 0), 0
            if at:
                record_finished(vocabulary.OPTIMIZER, at, monotonic_ns())

    handles = module.register_optimizer_step_pre_hook(before), module.register_optimizer_step_post_hook(after)
    return lambda: [handle.remove() for handle in handles]


def _join_existing(module: ModuleType) -> Callable[[], object]:
    """Where the process group was made before us, learn from it now."""
    if getattr(module, "GroupMember", None) is not None and module.GroupMember.WORLD is not None:
        join_process_group()
    return lambda: None


ATTACHMENTS = (
    Attachment("torch", _know_compiling),
    Attachment("torch.optim.optimizer", _time_optimizers),
    Attachment("torch.distributed.distributed_c10d", _join_existing),
)
