"""DeepSpeed: forward, backward, optimizer step and checkpoints of its engine.

Runs in every rank. Source: DeepSpeed 0.15 to 0.18, ``deepspeed/runtime/engine.py`` and ``deepspeed/comm/torch.py``: its
collectives are those of ``torch.distributed``, so they are rows already, inside ``allreduce_gradients`` too, and that
is no row of its own. DeepSpeed's own timers wait for the device; these do not.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks.install import Hook
from otel_rl.metrics.record import as_number, count, gauge
from otel_rl.process.layout import layout
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.stage import current_stage

PACKAGE = "deepspeed"
SUPPORTS = ">=0.15,<1"

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
AROUND = (vocabulary.FORWARD, vocabulary.LOGPROB, vocabulary.VALUE, vocabulary.SAMPLE, vocabulary.EVALUATE)
"""Stages of frameworks that call the engine's forward: it is part of them."""

ATTACHMENTS = ()


def _forward_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Only of training, and only where no framework has a stage for it."""
    stage = current_stage()
    is_inside = stage is not None and stage.name in AROUND
    return vocabulary.FORWARD if args[0].training and not is_inside else None


def _step_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """No stage between the micro-batches of an accumulation, where the step does nothing."""
    return vocabulary.OPTIMIZER if args[0].is_gradient_accumulation_boundary() else None


def _describe_step(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Value]:
    """Count the step; the one that overflowed was skipped."""
    engine = args[0]
    is_skipped = not engine.was_step_applied()
    state.training.skipped += is_skipped
    count(vocabulary.TRAIN_STEPS_SKIPPED if is_skipped else vocabulary.TRAIN_STEPS, 1)
    rates = engine.get_lr()
    rate = as_number(rates[0]) if rates else None
    if rate is not None and state.identity.rank == 0:  # the same on every rank
        gauge(vocabulary.LEARNING_RATE, rate, (vocabulary.SCOPE_KEY, "global"))
    return {vocabulary.OPTIMIZER_SKIPPED: is_skipped}


def _grid_made(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    layout.see_grid(args[0])


HOOKS = (
    Hook(target="deepspeed.runtime.pipe.topology:PipelineParallelGrid.__init__", after=_grid_made),
    Hook(target=f"{ENGINE}.forward", stage=_forward_stage),
    Hook(target=f"{ENGINE}.backward", stage=vocabulary.BACKWARD),
    Hook(target=f"{ENGINE}.step", stage=_step_stage, capture=_describe_step),
    Hook(
        target=f"{ENGINE}.save_checkpoint",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, PACKAGE),),
    ),
    Hook(
        target=f"{ENGINE}.load_checkpoint",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, PACKAGE), (vocabulary.CHECKPOINT_LOAD, True)),
    ),
)
