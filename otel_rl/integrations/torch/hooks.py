"""PyTorch: backward, optimizer, checkpoints, data loading and the collectives that Python sees.

Runs in every process that imports torch. Source: torch 2.13 to 2.15. A backward in which collectives run that Python
does not see has ``rl.comm.hidden``. ``process_group.py`` has what a rank learns from process groups.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.comm import ddp_wait
from otel_rl.comm.memory import comm
from otel_rl.guard import guard
from otel_rl.hooks import Args, Attachment, CallbackHook, Integration, Kwargs, Memory, StageHook, Verified
from otel_rl.hooks.callbacks import Capture
from otel_rl.hooks.collective import wrap_collective, wrap_method
from otel_rl.hooks.hook import After
from otel_rl.integrations.torch.distributed import COLLECTIVES
from otel_rl.integrations.torch.optimizers import time_optimizers
from otel_rl.integrations.torch.process_group import JOIN, PROCESS_GROUP
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.device_id import nvidia_id
from otel_rl.probes.memory import cuda_reader, probes, use_memory_reader
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_stage, innermost

DCP = "torch.distributed.checkpoint"
SAVED = ((vocabulary.CHECKPOINT_FORMAT, "dcp"),)
LOADED = (*SAVED, (vocabulary.CHECKPOINT_LOAD, True))
DATA = ((vocabulary.IDLE_REASON, "data"),)
PIPELINE = ((vocabulary.IDLE_REASON, "pipeline"),)
TORCH_SAVE = ((vocabulary.CHECKPOINT_FORMAT, "torch.save"),)


@dataclass(eq=False)
class Checkpoints(Memory):
    """Asynchronous checkpoints that are being staged."""

    staging: dict[int, Stage] = field(default_factory=dict)
    """The checkpoint that each thread's call is staging."""


checkpoints = Checkpoints.keep("checkpoints")


# --- what the hooks record --------------------------------------------------------------------------------------------


def _backward_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage for a backward inside a backward, by which checkpointing recomputes."""
    import torch

    if torch._C._current_graph_task_id() != -1:
        ddp_wait.split()
        return None
    if state.identity.world_size > 1:
        ddp_wait.watch(args[0])
        if _outer_stage() is not None:
            comm.seen_in = None  # what it called before this backward is none of it
    return vocabulary.BACKWARD


def _describe_backward(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value] | None:
    return ddp_wait.describe(current_stage()) if state.identity.world_size > 1 else None


def _backward_over(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Describe a user's or an engine's stage that has the place of ours, with DDP: other collectives are seen."""
    if state.identity.world_size < 2 or not comm.wrapped:
        return
    stage = _outer_stage()
    if stage is None:
        return
    described = ddp_wait.describe(stage) or {}
    if vocabulary.COMM_WAIT in described:  # several backwards in one stage
        waits = [one.get(vocabulary.COMM_WAIT) for one in (stage.attributes or {}, described)]
        described[vocabulary.COMM_WAIT] = sum(seconds for seconds in waits if isinstance(seconds, float))
    stage.set_attributes(described)


def _outer_stage() -> Stage | None:
    import torch

    stage = current_stage()
    is_one = stage is not None and stage.name == vocabulary.BACKWARD and torch._C._current_graph_task_id() == -1
    return stage if is_one else None


def _backward_failed(*_: object) -> None:
    ddp_wait.cancel()


def _wrapped_by_ddp(args: Args, kwargs: Kwargs, result: Any) -> None:
    ddp_wait.wrapped(args[0])


def _data_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no wait where another thread than that of the steps fetches ahead."""
    loop = tracing.loop
    return vocabulary.IDLE if loop is None or loop.thread == threading.get_ident() else None


def _pipeline_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no wait for nothing: schedules ask wherever there might have been something."""
    return vocabulary.IDLE if any(args) or any(kwargs.values()) else None


def _save_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage for what a thread without a stage writes while a checkpoint is open: it is a part of that."""
    is_bare = innermost() is None
    if is_bare and any(
        isinstance(opened, Stage) and opened.name == vocabulary.CHECKPOINT for opened in tracing.open.copy()
    ):
        return None
    return vocabulary.CHECKPOINT


def _torch_save_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage for what is written into memory: tensors and batches that are pickled for another process."""
    return None if isinstance(args[1], io.BytesIO) else _save_stage(args, kwargs)


def _file(args: Args, kwargs: Kwargs, result: object) -> dict[str, Value]:
    """Return the size of the file that ``torch.save(obj, f)`` wrote; of an open file it is not known."""
    is_path = len(args) > 1 and isinstance(args[1], str | os.PathLike)
    return {vocabulary.CHECKPOINT_BYTES: os.stat(args[1]).st_size} if is_path else {}


def _folder(args: Args, kwargs: Kwargs, result: object) -> dict[str, Value]:
    """Return the size of this rank's files in the folder of ``save(state_dict, *, checkpoint_id, storage_writer)``."""
    folder = kwargs.get("checkpoint_id") or getattr(kwargs.get("storage_writer"), "path", None)
    if not isinstance(folder, str | os.PathLike):
        return {}
    sizes = [one.stat().st_size for one in Path(folder).glob(f"__{state.identity.rank}_*")]
    return {vocabulary.CHECKPOINT_BYTES: sum(sizes)} if sizes else {}


def _add(measure: Capture) -> After:
    """Return what adds the size of what was written to the checkpoint that it is a part of."""

    def add(args: Args, kwargs: Kwargs, result: object) -> None:
        stage = current_stage()
        if stage is not None and stage.name == vocabulary.CHECKPOINT:
            known = (stage.attributes or {}).get(vocabulary.CHECKPOINT_BYTES)
            for key, size in (measure(args, kwargs, result) or {}).items():
                if isinstance(size, int):
                    stage.set_attribute(key, size + (known if isinstance(known, int) else 0))

    return add


def _saving_goes_on(args: Args, kwargs: Kwargs, result: Any) -> None:
    """End the checkpoint when its future is done; the call itself was only its staging."""
    future = result if isinstance(result, Future) else getattr(result, "upload_completion", None)
    span = _staged()
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


def _begin_async_save(args: Args, kwargs: Kwargs) -> None:
    """Open the checkpoint that lasts until its future is done; it is current while it is staged."""
    span = Stage(
        vocabulary.CHECKPOINT, {vocabulary.CHECKPOINT_ASYNC: True, vocabulary.CHECKPOINT_FORMAT: "dcp"}, coarse=True
    )
    checkpoints.staging[threading.get_ident()] = span.__enter__()


def _staged() -> Stage | None:
    """Return the checkpoint whose call has ended: what follows is not inside it."""
    span = checkpoints.staging.pop(threading.get_ident(), None)
    if span is not None:
        span.leave()
    return span


def _async_save_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    span = _staged()
    if span is not None:
        span.fail(error)
        span.close(monotonic_ns())


HOOKS = (
    *PROCESS_GROUP,
    StageHook(
        target="torch.autograd:backward",
        stage=_backward_stage,
        capture=_describe_backward,
        after=_backward_over,
        failed=_backward_failed,
    ),
    CallbackHook(target="torch.nn.parallel.distributed:DistributedDataParallel.__init__", after=_wrapped_by_ddp),
    *(
        StageHook(target=target, stage=_torch_save_stage, attributes=TORCH_SAVE, capture=_file, after=_add(_file))
        for target in ("torch.serialization:save", "torch:save")
    ),
    *(
        StageHook(target=target, stage=_save_stage, attributes=SAVED, capture=_folder, after=_add(_folder))
        for target in (f"{DCP}.state_dict_saver:save", f"{DCP}:save")
    ),
    *(
        StageHook(target=target, stage=vocabulary.CHECKPOINT, attributes=LOADED)
        for target in (f"{DCP}.state_dict_loader:load", f"{DCP}:load")
    ),
    # What the old ``save_state_dict`` and ``load_state_dict`` call.
    StageHook(target=f"{DCP}.state_dict_saver:_save_state_dict", stage=_save_stage, attributes=SAVED, optional=True),
    StageHook(
        target=f"{DCP}.state_dict_loader:_load_state_dict",
        stage=vocabulary.CHECKPOINT,
        attributes=LOADED,
        optional=True,
    ),
    *(
        StageHook(
            target=target,
            stage=vocabulary.CHECKPOINT_STAGING,
            before=_begin_async_save,
            after=_saving_goes_on,
            failed=_async_save_failed,
        )
        for target in (f"{DCP}.state_dict_saver:async_save", f"{DCP}:async_save")
    ),
    StageHook(
        target="torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel.clip_grad_norm_",
        stage=vocabulary.CLIP,
        optional=True,
    ),
    StageHook(target="torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", stage=_data_stage, attributes=DATA),
    StageHook(  # with gloo the wait itself; on a device that of its stream, and the host goes on
        target="torch.distributed.pipelining.schedules:_wait_batch_p2p",
        stage=_pipeline_stage,
        attributes=PIPELINE,
        optional=True,
    ),
    *COLLECTIVES,
)


# --- what is attached by torch's own means ----------------------------------------------------------------------------


def _know_compiling(torch: ModuleType) -> Callable[[], object]:
    """Learn whether torch compiles, to stay out of compiled regions, and use CUDA and ROCm."""
    compiler = torch.compiler
    before = hooking.is_compiling, hooking.is_tracing, hooking.compiler
    hooking.is_compiling = hooking.is_tracing = compiler.is_compiling
    if hasattr(compiler, "_is_compiling_flag"):
        hooking.is_tracing, hooking.compiler = compiler.is_dynamo_compiling, compiler
    leave = _know_device("cuda", getattr(torch, "cuda", None))

    def detach() -> None:
        hooking.is_compiling, hooking.is_tracing, hooking.compiler = before
        leave()

    return detach


def _know_ascend(torch_npu: ModuleType) -> Callable[[], object]:
    return _know_device("npu", getattr(torch_npu, "npu", None))


def _know_device(kind: str, device: Any) -> Callable[[], object]:
    """Read the memory of a device, and time stages on it, once the process uses one."""
    if not hasattr(getattr(device, "memory", None), "memory_stats_as_nested_dict"):
        return lambda: None
    if kind == "cuda" and probes.read_device is not None:
        return lambda: None  # torch has loaded torch_npu at its own end, which so was there first
    alone = threading.RLock()

    def in_use() -> None:
        with alone:  # a second thread that meets it would forget what has begun, and when the device was unused
            if probes.device is None:
                probes.device = DeviceInUse(device)

    use_memory_reader(cuda_reader(device, in_use))
    if kind == "cuda" and getattr(sys.modules.get("torch.version"), "hip", None) is None:
        probes.find_device = partial(nvidia_id, device)
    # Torch's own knows CUDA's devices only, also in a build for CUDA that runs on Ascend.
    probes.has_context = (
        getattr(sys.modules.get("torch._C"), "_cuda_hasPrimaryContext", None) if kind == "cuda" else None
    )

    def leave() -> None:
        use_memory_reader()
        probes.has_context = None
        probes.find_device = lambda: None

    return leave


def _pass_frames_over(module: ModuleType) -> Callable[[], object]:
    """Keep our replacements from being compiled by themselves where the host calls them from uncompiled code.

    Between the graphs of a compiled model Dynamo skips the functions of torch's own files; this makes it skip ours.
    Inside a graph they are still inlined. Only code of ours is marked; it cannot be unmarked, and need not be.
    """
    torch = sys.modules["torch"]
    compiling = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)

    def uncompiled(function: Any) -> Any:  # torch's own frames, which ``disable`` puts around it, count as callers
        is_watched = torch.compiler.is_dynamo_compiling() or compiling() is not None
        return torch.compiler.disable(function) if is_watched else function

    hooking.uncompiled = uncompiled
    if hasattr(module, "set_code_exec_strategy"):  # since torch 2.7
        skip = module.FrameExecStrategy(module.FrameAction.SKIP, module.FrameAction.SKIP)
        for code in (*wrap_collective.__code__.co_consts, *wrap_method.__code__.co_consts):
            if isinstance(code, CodeType):
                module.set_code_exec_strategy(code, skip)
    return lambda: None


INTEGRATION = Integration(
    name="torch",
    package="torch",
    supports=">=2.4",
    records="backward, optimizer, data loader, checkpoints and collectives",
    verified=Verified.REAL,
    hooks=HOOKS,
    attachments=(
        Attachment("torch._dynamo.eval_frame", _pass_frames_over),
        Attachment("torch", _know_compiling),
        Attachment("torch_npu", _know_ascend),
        Attachment("torch.optim.optimizer", time_optimizers),
        JOIN,
    ),
    memory=checkpoints,
)
