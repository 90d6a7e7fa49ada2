"""Optimizers that no framework wraps: a stage from torch's global hook before a step to the one after it.

The stage is open in between, so what a closure calls, and what an optimizer made of others does, is inside it. Torch
does not call the hook after a step that raises: its stage ends at the next step of an optimizer on the same thread, or
with the training's step.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any, SupportsIndex

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.trace.stage import Stage, current_stage
from otel_rl.trace.training import end_raised, training


class Innermost(threading.local):
    """The step that this thread is in, or one that raised."""

    stage: Stage | None = None
    step = 0
    """The ``id()`` of its frame, which itself would keep alive the tensors of a step that raised."""


class OptimizerTiming:
    """The functions that torch calls before and after each step."""

    def __init__(self, module: ModuleType) -> None:
        self._of_thread = Innermost()
        step: Any = module.Optimizer.profile_hook_step(lambda: None)
        self._wrapper: CodeType = step.__code__
        """What calls them, in every step of every optimizer."""
        self._graph_task: Callable[[], int] = sys.modules["torch"]._C._current_graph_task_id

    def begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open the stage, unless the step belongs to a backward, to a framework's own stage or to another optimizer.

        Inside a backward an optimizer is stepped 100 times where there is one for each parameter (measured).
        """
        if not state.on or hooking.is_compiling():
            return
        of_thread, stepping = self._of_thread, training.stepping
        if of_thread.stage in stepping:
            if self._steps(sys._getframe()) > 1:
                return
            end_raised(monotonic_ns())
        parent = current_stage()
        is_part = parent is not None and parent.name in (vocabulary.OPTIMIZER, vocabulary.BACKWARD)
        if is_part or self._graph_task() != -1:
            return
        stage = Stage(vocabulary.OPTIMIZER, coarse=True)
        stage.open()
        stepping[stage] = threading.get_ident(), parent
        of_thread.stage, of_thread.step = stage, self._step(sys._getframe())

    def end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close the stage that this step has opened, and no other inside it: a subclass may call that of its base."""
        now = monotonic_ns()
        of_thread = self._of_thread
        stage = of_thread.stage
        if stage is None or of_thread.step != self._step(sys._getframe()):
            return
        of_thread.stage = None
        if training.stepping.pop(stage, None) is not None:
            stage.close(now)

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


def time_optimizers(module: ModuleType) -> Callable[[], object]:
    """Register them; return what removes them."""
    timing = OptimizerTiming(module)
    handles = (
        module.register_optimizer_step_pre_hook(partial(attempt, "begin", "an optimizer step", timing.begin)),
        module.register_optimizer_step_post_hook(partial(attempt, "end", "an optimizer step", timing.end)),
    )
    for handle in handles:
        _leave_out_of_pickles(handle.hooks_dict_ref(), handle.id)

    def remove() -> None:
        for handle in handles:
            vars(handle.hooks_dict_ref()).pop("__reduce_ex__", None)
            handle.remove()

    return remove


def _leave_out_of_pickles(hooks: OrderedDict[int, Any], ours: int) -> None:
    """Let torch's hooks pickle as they would without one of ours.

    What pickles a function by value (cloudpickle, dill) pickles the globals that it uses. Those of ``Optimizer.step``
    are these hooks. Datasets are found again in their cache by the bytes of the functions that made them.
    """

    def reduce(protocol: SupportsIndex) -> str | tuple[Any, ...]:
        others = ((key, hook) for key, hook in hooks.items() if key != ours)
        return OrderedDict(others).__reduce_ex__(protocol)

    vars(hooks)["__reduce_ex__"] = reduce
