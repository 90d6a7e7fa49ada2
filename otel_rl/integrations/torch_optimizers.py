"""Optimizers that no framework wraps: a stage from torch's global hook before a step to the one behind it.

The stage is open in between, so what a closure calls, and what an optimizer made of others does, is inside it. Torch
does not call the hook behind a step that raises: its stage ends at the next step of an optimizer on the same thread,
or with the block of the training's step.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from types import CodeType, FrameType, ModuleType
from typing import Any

from otel_rl import vocabulary
from otel_rl.current import CURRENT, SPAN_KEY
from otel_rl.guard import attempt
from otel_rl.runtime import state
from otel_rl.spans import Stage
from otel_rl.steps import Stepping, end_raised


class Innermost(threading.local):
    """The optimizer whose step this thread is in, or of one that raised."""

    stage: Stage | None = None
    optimizer = 0
    """Its ``id()``: the object itself would be kept alive by a step that raised."""
    depth = 0
    """How many of its steps are open, one inside the other: a subclass may call the step of its base."""


class Timing:
    """The two hooks."""

    def __init__(self, module: ModuleType) -> None:
        self._of_thread = Innermost()
        step: Any = module.Optimizer.profile_hook_step(lambda: None)
        self._wrapper: CodeType = step.__code__
        """What calls the hooks, around every step of every optimizer."""
        self._graph_task: Callable[[], int] = sys.modules["torch"]._C._current_graph_task_id

    def begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open the stage, unless the step belongs to a backward, to a framework's own stage or to another optimizer.

        Inside a backward an optimizer is stepped 100 times where there is one for each parameter (measured).
        """
        if not state.on or state.is_compiling():
            return
        of_thread, stepping = self._of_thread, state.training.stepping
        if of_thread.stage in stepping:
            if self._steps(sys._getframe()) > 1:
                of_thread.depth += of_thread.optimizer == id(optimizer)
                return
            end_raised(monotonic_ns())
        context = CURRENT.get()
        parent = context.get(SPAN_KEY)
        above = parent if parent.__class__ is Stage else state.container
        is_part = above is not None and above.name in (vocabulary.OPTIMIZER, vocabulary.BACKWARD)
        if is_part or self._graph_task() != -1:
            return
        stage = Stage(vocabulary.OPTIMIZER, coarse=True)
        stage.open(context, parent)
        stepping[stage] = Stepping(threading.get_ident(), CURRENT.get(), parent, above, self._is_over)
        of_thread.stage, of_thread.optimizer, of_thread.depth = stage, id(optimizer), 1

    def end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close the stage that this optimizer's step has opened."""
        now = monotonic_ns()
        of_thread = self._of_thread
        stage = of_thread.stage
        if stage is None or of_thread.optimizer != id(optimizer):
            return
        of_thread.depth -= 1
        if not of_thread.depth:
            of_thread.stage = None
            if state.training.stepping.pop(stage, None) is not None:
                stage.close(now)

    def _is_over(self, thread: int) -> bool:
        return not self._steps(sys._current_frames().get(thread))

    def _steps(self, frame: FrameType | None) -> int:
        """Count the steps of optimizers that a thread is in, up to 2."""
        steps = 0
        while frame is not None and steps < 2:
            steps += frame.f_code is self._wrapper
            frame = frame.f_back
        return steps


def time_optimizers(module: ModuleType) -> Callable[[], object]:
    """Register the hooks."""
    timing = Timing(module)
    handles = (
        module.register_optimizer_step_pre_hook(partial(attempt, "begin", "an optimizer step", timing.begin)),
        module.register_optimizer_step_post_hook(partial(attempt, "end", "an optimizer step", timing.end)),
    )
    return lambda: [handle.remove() for handle in handles]
