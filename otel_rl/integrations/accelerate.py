"""accelerate: its optimizer, and the collectives that trainers call through it.

Runs in every rank. Source: accelerate 1.10 to 1.15, ``accelerate/optimizer.py`` and ``accelerate/utils/operations.py``.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks.install import Hook
from otel_rl.metrics.record import as_number, count, gauge
from otel_rl.probes import deferred
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.stage import current_stage

PACKAGE = "accelerate"
SUPPORTS = ">=1.10,<2"

GLOBAL = ((vocabulary.SCOPE_KEY, "global"),)

ATTACHMENTS = ()


def _optimizer_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """No stage between the micro-batches of an accumulation, where the step does nothing."""
    return vocabulary.OPTIMIZER if args[0].gradient_state.sync_gradients else None


def _describe_step(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Value]:
    return {vocabulary.OPTIMIZER_SKIPPED: bool(args[0].step_was_skipped)}


def _count_step(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    optimizer = args[0]
    if not optimizer.gradient_state.sync_gradients or state.training.inner:
        return
    is_skipped = bool(optimizer.step_was_skipped)
    state.training.skipped += is_skipped
    count(vocabulary.TRAIN_STEPS_SKIPPED if is_skipped else vocabulary.TRAIN_STEPS, 1)
    rate = as_number(optimizer.param_groups[0]["lr"])
    if rate is not None and state.identity.rank == 0:  # the same on every rank
        gauge(vocabulary.LEARNING_RATE, rate, *GLOBAL)


def _keep_norm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """The norm is the same on every rank: rank 0 reports it, unless the call is part of a trainer's own clipping.

    Trainers of transformers 5 have a method for that, with a row of its own; those of 4.56 and 4.57 call this.
    """
    stage = current_stage()
    is_part = stage is not None and stage.name == vocabulary.CLIP and stage.coarse
    is_told = is_part or state.training.inner
    if not is_told and state.identity.rank == 0 and result is not None:
        deferred.gauge(vocabulary.GRAD_NORM, result, GLOBAL)  # DeepSpeed returns a number


HOOKS = (
    Hook(target="accelerate.accelerator:Accelerator.clip_grad_norm_", stage=vocabulary.CLIP, after=_keep_norm),
    Hook(
        target="accelerate.optimizer:AcceleratedOptimizer.step",
        stage=_optimizer_stage,
        capture=_describe_step,
        after=_count_step,
    ),
    *(
        Hook(target=f"accelerate.{module}:{name}", collective=0, optional=True)
        for module in ("utils.operations", "utils", "accelerator")
        for name in ("gather", "gather_object", "broadcast", "broadcast_object_list", "reduce")
    ),
    Hook(target="accelerate.accelerator:Accelerator.gather", collective=1),
    Hook(target="accelerate.accelerator:Accelerator.gather_for_metrics", collective=1),
    Hook(target="accelerate.accelerator:Accelerator.reduce", collective=1),
    Hook(target="accelerate.accelerator:Accelerator.wait_for_everyone", collective=1),
)
