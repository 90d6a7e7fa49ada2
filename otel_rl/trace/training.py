"""What the hooks of several integrations remember of one training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from otel_rl import vocabulary
from otel_rl.process.memory import Memory
from otel_rl.records import Attributes

if TYPE_CHECKING:
    from otel_rl.trace.stage import Stage
    from otel_rl.trace.throughput import Throughput

OPTIMIZERS = "torch/optim/optimizer.py"
"""In whose functions every step of an optimizer runs."""


@dataclass(eq=False)
class OpenTraining(Memory):
    """The training whose loop is open in this process."""

    throughput: Throughput | None = None
    """Counts the loop's work."""
    inner: int = 0
    """How many loops of other trainers are open inside the open step, one inside the other."""
    waits_for: str = "data"
    """The reason of a wait for the next batch."""
    step_over: Callable[[Any], object] | None = None
    """``(trainer)``: records what the trainer measured in a step, before its log clears that."""
    evaluating: int = 0
    """How many calls that evaluate are open, one inside the other."""
    skipped: int = 0
    """Optimizer updates that were skipped; the framework's step number counts them too."""
    forward: Attributes | None = None
    """Attributes of the last forward of the open step: the micro-batch of the backward that follows."""
    stepping: dict[Stage, tuple[int, Stage | None]] = field(default_factory=dict)
    """Each step of an optimizer that has begun and not ended: its thread and the stage that it is inside."""


training = OpenTraining.keep("training")


def end_raised(now: int, error: BaseException | None = None) -> None:
    """End the stages of optimizers' steps that raised on this thread: torch does not report that they are over."""
    for stage, (thread, parent) in tuple(training.stepping.items()):
        if thread != get_ident() or training.stepping.pop(stage, None) is None:
            continue
        stage.token = None  # what it is inside may be over, and would be current again
        trace = None if error is None else error.__traceback__
        if error is not None and any(frame.f_code.co_filename.endswith(OPTIMIZERS) for frame, _ in walk_tb(trace)):
            stage.fail(error)
        else:
            stage.set_attribute(vocabulary.TRUNCATED, True)
        stage.close((0 if parent is None else parent.ended) or now)
