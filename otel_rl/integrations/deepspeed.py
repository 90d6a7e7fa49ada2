"""DeepSpeed: forward, backward, optimizer step and checkpoints of its engine.

Runs in every rank. Source: DeepSpeed 0.15 to 0.18, ``deepspeed/runtime/engine.py`` and ``deepspeed/comm/torch.py``.
Its collectives are those of ``torch.distributed`` and recorded there, also inside ``allreduce_gradients``. DeepSpeed's
own timers wait for the device; these stages do not.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks import Args, CallbackHook, Integration, Kwargs, StageHook, Verified
from otel_rl.metrics.record import as_number, count, gauge
from otel_rl.process.layout import layout
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.guest import guest
from otel_rl.trace.stage import current_stage
from otel_rl.trace.training import training

ENGINE = "deepspeed.runtime.engine:DeepSpeedEngine"
FORWARDS = (
    *(vocabulary.FORWARD, vocabulary.LOGPROB, vocabulary.VALUE, vocabulary.EVALUATE),
    *(vocabulary.SAMPLE, vocabulary.SAMPLE_GENERATE),
)
"""Stages of frameworks that call the engine's forward: it is part of them."""
FORMAT = ((vocabulary.CHECKPOINT_FORMAT, "deepspeed"),)


def _forward_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return a stage only for training, and only where no framework has one for it."""
    stage = current_stage()
    is_inside = stage is not None and stage.name in FORWARDS
    return vocabulary.FORWARD if args[0].training and not is_inside else None


def _step_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage between the micro-batches of an accumulation, where the step does nothing."""
    return vocabulary.OPTIMIZER if args[0].is_gradient_accumulation_boundary() else None


def _describe_step(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    engine = args[0]
    is_skipped = not engine.was_step_applied()
    training.skipped += is_skipped
    count(vocabulary.TRAIN_STEPS_SKIPPED if is_skipped else vocabulary.TRAIN_STEPS, 1)
    rates = engine.get_lr()
    rate = as_number(rates[0]) if rates else None
    if (
        rate is not None and state.identity.rank == 0 and not guest.began
    ):  # the same on every rank; a driver logs its own
        gauge(vocabulary.LEARNING_RATE, rate, (vocabulary.SCOPE_KEY, "global"))
    return {vocabulary.OPTIMIZER_SKIPPED: is_skipped}


def _grid_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    layout.read_grid(args[0])


INTEGRATION = Integration(
    name="deepspeed",
    package="deepspeed",
    supports=">=0.15,<1",
    records="stages of its engine",
    verified=Verified.SHAPE,
    needs=("torch",),
    hooks=(
        CallbackHook(target="deepspeed.runtime.pipe.topology:PipelineParallelGrid.__init__", after=_grid_made),
        StageHook(target=f"{ENGINE}.forward", stage=_forward_stage),
        StageHook(target=f"{ENGINE}.backward", stage=vocabulary.BACKWARD),
        StageHook(target=f"{ENGINE}.step", stage=_step_stage, capture=_describe_step),
        StageHook(target=f"{ENGINE}.save_checkpoint", stage=vocabulary.CHECKPOINT, attributes=FORMAT),
        StageHook(
            target=f"{ENGINE}.load_checkpoint",
            stage=vocabulary.CHECKPOINT,
            attributes=(*FORMAT, (vocabulary.CHECKPOINT_LOAD, True)),
        ),
    ),
)
