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
from traceback import walk_tb
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_stage, innermost
from otel_rl.trace.steps import end_raised


class Begun(NamedTuple):
    """A step that has begun."""

    stage: Stage
    thread: int
    above: Stage | None
    """The stage that it is inside."""


class Innermost(threading.local):
    """The step that this thread is in, or one that raised."""

    stage: Stage | None = None
    step = 0
    """The ``id()`` of its frame, which itself would keep alive what a step that raised held."""


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
        if not state.on or hooking.is_compiling():
            return
        of_thread, stepping = self._of_thread, state.training.stepping
        if of_thread.stage in stepping:
            if self._steps(sys._getframe()) > 1:
                return
            end_raised(monotonic_ns())
        above = current_stage()
        is_part = above is not None and above.name in (vocabulary.OPTIMIZER, vocabulary.BACKWARD)
        if is_part or self._graph_task() != -1:
            return
        stage = Stage(vocabulary.OPTIMIZER, coarse=True)
        stage.open()
        begun = Begun(stage, threading.get_ident(), above)
        stepping[stage] = partial(self._end_if_raised, begun)
        of_thread.stage, of_thread.step = stage, self._step(sys._getframe())

    def end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close the stage that this step has opened, and no other inside it: a subclass may call that of its base."""
        now = monotonic_ns()
        of_thread = self._of_thread
        stage = of_thread.stage
        if stage is None or of_thread.step != self._step(sys._getframe()):
            return
        of_thread.stage = None
        if state.training.stepping.pop(stage, None) is not None:
            stage.close(now)

    def _end_if_raised(self, step: Begun, now: int, error: BaseException | None) -> None:
        """End the stage of a step that raised: one of this thread has, since it is over; one of another, if it is.

        Only of this thread is it known what goes on behind the step, and whether ``error`` is what ended it.
        """
        stage, is_own = step.stage, step.thread == threading.get_ident()
        if not is_own and self._steps(sys._current_frames().get(step.thread)):
            return
        if state.training.stepping.pop(stage, None) is None:
            return
        stage.token = None  # what it is inside may be over, and would be current again
        end = (step.above.ended if step.above is not None else 0) or now
        behind = _open_below(stage) if is_own else None
        if behind is not None:
            behind.parent_id = stage.parent_id
            end = min(end, behind.began)
        if is_own and error is not None and self._has_passed(error):
            stage.fail(error)
        else:
            stage.set_attribute(vocabulary.TRUNCATED, True)
        stage.close(end)

    def _has_passed(self, error: BaseException) -> bool:
        """Whether an error came out of an optimizer's step: then of the last one, as each ends those that raised."""
        return any(frame.f_code is self._wrapper for frame, _ in walk_tb(error.__traceback__))

    def _step(self, frame: FrameType | None) -> int:
        """Identify the innermost step of an optimizer that a thread is in, by its frame."""
        while frame is not None and frame.f_code is not self._wrapper:
            frame = frame.f_back
        return id(frame)

    def _steps(self, frame: FrameType | None) -> int:
        """Count the steps of optimizers that a thread is in, up to 2."""
        steps = 0
        while frame is not None and steps < 2:
            steps += frame.f_code is self._wrapper
            frame = frame.f_back
        return steps


def _open_below(stage: Stage) -> Stage | None:
    """Find what this thread is inside, directly below a stage whose code it has left: it began behind that."""
    opened = {one.span_id: one for one in tracing.open.copy() if one.__class__ is Stage}
    below = innermost()
    while below is not None and below.parent_id != stage.span_id:
        below = opened.get(below.parent_id)
    return below


def time_optimizers(module: ModuleType) -> Callable[[], object]:
    """Register the hooks."""
    timing = Timing(module)
    handles = (
        module.register_optimizer_step_pre_hook(partial(attempt, "begin", "an optimizer step", timing.begin)),
        module.register_optimizer_step_post_hook(partial(attempt, "end", "an optimizer step", timing.end)),
    )
    return lambda: [handle.remove() for handle in handles]
