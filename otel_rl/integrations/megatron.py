"""Megatron-Core: forward and backward of each micro-batch, optimizer step, checkpoint; and a drop-in for its timers.

Runs in every rank. Source: megatron-core 0.8 to 0.16, ``core/pipeline_parallel/schedules.py`` (its backward calls the
engine of autograd itself where outputs are freed, so ``torch.autograd.backward`` does not see it),
``core/optimizer/optimizer.py`` and ``core/timers.py``. Its collectives are those of ``torch.distributed``, their
waits those of ``Work.wait``, which are recorded there. All messages of a pipeline go through ``_communicate`` of
``core/pipeline_parallel/p2p_communication.py``; where it overlaps them with computing, the schedule waits by
``Work.wait`` alone, and there is no ``rl.idle``.
"""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.hooks import Args, Integration, Kwargs, StageHook, Verified
from otel_rl.metrics.record import count
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.stage import Stage, current_stage
from otel_rl.trace.training import training

SCHEDULES = "megatron.core.pipeline_parallel.schedules"
OPTIMIZER = "megatron.core.optimizer.optimizer"
P2P = "megatron.core.pipeline_parallel.p2p_communication"
FORWARDS = {vocabulary.LOGPROB: vocabulary.LOGPROB_FORWARD, vocabulary.VALUE: None}
"""The stage of a forward that is not trained, by the stage around it."""
REASONS = {
    "batch-generator": "data",
    **dict.fromkeys(
        (
            "forward-recv",
            "backward-recv",
            "forward-send-backward-recv",
            "backward-send-forward-recv",
            "forward-send-forward-recv",
            "backward-send-backward-recv",
            "forward-backward-send-forward-backward-recv",
        ),
        "pipeline",
    ),
}
"""Timers of Megatron that are waits, and for what."""
STAGES = {
    **dict.fromkeys(REASONS, vocabulary.IDLE),
    "forward-compute": vocabulary.FORWARD,
    "backward-compute": vocabulary.BACKWARD,
    "optimizer": vocabulary.OPTIMIZER,
    "optimizer-clip-main-grad": vocabulary.CLIP,
    "save-checkpoint": vocabulary.CHECKPOINT,
}
"""Timers of Megatron that are stages of the vocabulary; the others keep their own name."""


def _describe_step(args: Args, kwargs: Kwargs, result: Any) -> dict[str, Value]:
    """Count the step: it returns (was it successful, gradient norm, zeros in the gradients)."""
    is_skipped = not result[0]
    training.skipped += is_skipped
    count(vocabulary.TRAIN_STEPS_SKIPPED if is_skipped else vocabulary.TRAIN_STEPS, 1)
    return {vocabulary.OPTIMIZER_SKIPPED: is_skipped}


def _receiving(args: Args, kwargs: Kwargs) -> str | None:
    """Return a wait only where it receives from a neighbour and does not leave the waiting to its caller."""
    is_receiving = kwargs.get("recv_prev") or kwargs.get("recv_next")
    return vocabulary.IDLE if is_receiving and kwargs.get("wait_on_reqs", True) else None


def _forward_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Name a forward by what it is for: one of values is part of its stage."""
    around = current_stage()
    return FORWARDS.get(around.name if around is not None else "", vocabulary.FORWARD)


INTEGRATION = Integration(
    name="megatron",
    package="megatron-core",
    supports=">=0.8,<1",
    records="stages of its schedules, optimizer and checkpoints",
    verified=Verified.SHAPE,
    needs=("torch",),
    hooks=(
        *(
            StageHook(
                target=f"{P2P}:{name}",
                stage=_receiving,
                attributes=((vocabulary.IDLE_REASON, "pipeline"),),
                optional=True,  # the function until 0.13, the method since 0.14
            )
            for name in ("_communicate", "P2PCommunicator._communicate")
        ),
        StageHook(target=f"{SCHEDULES}:forward_step", stage=_forward_stage),
        StageHook(target=f"{SCHEDULES}:backward_step", stage=vocabulary.BACKWARD),
        *(
            StageHook(target=f"{OPTIMIZER}:{name}.step", stage=vocabulary.OPTIMIZER, capture=_describe_step)
            for name in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")
        ),
        StageHook(
            target="megatron.training.checkpointing:save_checkpoint",
            stage=vocabulary.CHECKPOINT,
            attributes=((vocabulary.CHECKPOINT_FORMAT, "megatron"),),
            optional=True,
        ),
    ),
)


class Timers:
    """A drop-in for the timers of a Megatron configuration: ``config.timers = Timers()``.

    Every timer of the schedules becomes a stage; those that receive in a pipeline (``forward-recv``, ...) are waits.
    Megatron's own timers wait for the device and, where asked, for all ranks, at both ends; these never wait.
    """

    def __init__(self) -> None:
        self._timers: dict[str, Timer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> Timer:
        """Return the timer of a name; every level is timed."""
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = Timer(name)
        return timer


class Timer:
    """One timer: a stage from ``start`` to ``stop``. Neither raises, whatever their order."""

    def __init__(self, name: str) -> None:
        self.name = STAGES.get(name, name)
        self._reason = REASONS.get(name)
        self._stage: Stage | None = None

    def start(self, barrier: bool = False) -> None:
        """Open the stage, unless a hook has opened one of the same name already."""
        with guard("start a timer of Megatron"):
            parent = current_stage()
            is_open = self._stage is not None or (parent is not None and parent.name == self.name)
            if state.on and not is_open:
                attributes: dict[str, Value] | None = {vocabulary.IDLE_REASON: self._reason} if self._reason else None
                self._stage = Stage(self.name, attributes, coarse=True).__enter__()

    def stop(self, barrier: bool = False) -> None:
        """End the stage."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.__exit__(None, None, None)

    def reset(self) -> None:
        """Keep nothing: what has ended is recorded."""
