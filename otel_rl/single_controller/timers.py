"""Timers of frameworks that are objects: they begin and end as context managers, and bracket a part of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from otel_rl.hooks import Memory
from otel_rl.trace.stage import Stage, current_stage


@dataclass(eq=False)
class RunningTimers(Memory):
    """The stages of the timers that are running."""

    stages: dict[int, Stage] = field(default_factory=dict)
    """By ``id()`` of the timer."""


running_timers = RunningTimers.keep("running_timers")


def enter_timer(timer: object, stage: Stage | None) -> None:
    """Open the stage of a timer, if it is one; inside a stage of the same name it is part of that."""
    around = current_stage()
    if stage is not None and (around is None or around.name != stage.name):
        stage.open()
        running_timers.stages[id(timer)] = stage


def leave_timer(timer: object, *exc_info: Any) -> None:
    """End the stage of a timer, with the arguments of its ``__exit__``."""
    stage = running_timers.stages.pop(id(timer), None)
    if stage is not None:
        stage.__exit__(*(exc_info or (None, None, None)))
