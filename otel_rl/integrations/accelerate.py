"""Hooks on accelerate: its optimizer, and the collectives that trainers call through it.

Runs in every rank. Source: accelerate 1.10 to 1.15, ``accelerate/optimizer.py`` and ``accelerate/utils/operations.py``.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CollectiveHook, Integration, Kwargs, StageHook, Verified
from otel_rl.metrics.record import as_number, count, gauge
from otel_rl.probes import deferred
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.gap import end_between
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import current_stage
from otel_rl.trace.training import training

GLOBAL = ((vocabulary.SCOPE_KEY, "global"),)
ACCELERATOR = "accelerate.accelerator:Accelerator"


def _optimizer_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage between the micro-batches of an accumulation, where the step does nothing."""
    return vocabulary.OPTIMIZER if args[0].gradient_state.sync_gradients else None


def _describe_step(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    return {vocabulary.OPTIMIZER_SKIPPED: bool(args[0].step_was_skipped)}


def _count_step(args: Args, kwargs: Kwargs, result: Any) -> None:
    optimizer = args[0]
    if not optimizer.gradient_state.sync_gradients or training.inner:
        return
    is_skipped = bool(optimizer.step_was_skipped)
    training.skipped += is_skipped
    count(vocabulary.TRAIN_STEPS_SKIPPED if is_skipped else vocabulary.TRAIN_STEPS, 1)
    rate = as_number(optimizer.param_groups[0]["lr"])
    if rate is not None and state.identity.rank == 0:  # the same on every rank
        gauge(vocabulary.LEARNING_RATE, rate, *GLOBAL)


def _keep_norm(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Record the norm on rank 0: it is the same on every rank.

    Trainers of transformers 5 call this in a clipping of their own, whose hook records it; those of 4.56 and 4.57 call
    it directly.
    """
    stage = current_stage()
    is_part = stage is not None and stage.name == vocabulary.CLIP and stage.coarse
    if not is_part and not training.inner and state.identity.rank == 0 and result is not None:
        deferred.gauge(vocabulary.GRAD_NORM, result, GLOBAL)  # DeepSpeed returns a number


def _decoded(args: Args, kwargs: Kwargs) -> None:
    """End the decoding of a rollout: what a trainer gathers then are lengths."""
    if tracing.between is not None and tracing.between.name == vocabulary.SAMPLE_DECODE:
        end_between()


INTEGRATION = Integration(
    name="accelerate",
    package="accelerate",
    supports=">=1.10,<2",
    records="its collectives, gradient clipping and optimizer step",
    verified=Verified.REAL,
    needs=("torch",),
    hooks=(
        StageHook(target=f"{ACCELERATOR}.clip_grad_norm_", stage=vocabulary.CLIP, after=_keep_norm),
        StageHook(
            target="accelerate.optimizer:AcceleratedOptimizer.step",
            stage=_optimizer_stage,
            capture=_describe_step,
            after=_count_step,
        ),
        *(
            CollectiveHook(target=f"accelerate.{module}:{name}", optional=True)
            for module in ("utils.operations", "utils", "accelerator")
            for name in ("gather", "gather_object", "broadcast", "broadcast_object_list", "reduce")
        ),
        CollectiveHook(target=f"{ACCELERATOR}.gather", position=1, before=_decoded),
        *(
            CollectiveHook(target=f"{ACCELERATOR}.{name}", position=1)
            for name in ("gather_for_metrics", "reduce", "wait_for_everyone")
        ),
    ),
)
