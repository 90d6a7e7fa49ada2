"""Early stops of verl: the step that follows becomes the last one.

In its last step verl evaluates and, if it saves at all, saves; then its ``fit`` returns. One number says which that is,
and verl looks at it where a step begins.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rl.actions.action_plan import DONE, REHEARSED, record
from otel_rl.actions.chosen import end_plan, make_plan
from otel_rl.actions.memory import acting
from otel_rl.hooks import Args, Kwargs
from otel_rl.integrations.verl.tracking import CANONICAL
from otel_rl.single_controller import driver as kit

KEYS: Final = {name: key for key, (name, labels) in reversed(CANONICAL.items()) if not labels}
NO_CHECKPOINTS: Final = "verl's checkpoints are saved by its workers while they train: best ones are not possible."


def begin_actions(trainer: Any) -> None:
    """Make the plan of a training that begins."""
    make_plan(KEYS, int(trainer.global_steps), no_checkpoints=NO_CHECKPOINTS)


def after_log(args: Args, kwargs: Kwargs, result: object) -> None:
    """Stop if it is due: ``Tracking.log`` has had the numbers of a step."""
    plan, trainer = acting.plan, kit.driver.trainer
    data, step = (kwargs.get(name, args[i] if len(args) > i else None) for i, name in enumerate(("data", "step"), 1))
    if plan is None or trainer is None or step is None or not data:
        return
    for due in plan.after_step(int(step), [data]):
        why = due.action.condition + ("" if due.value is None else f" (now {due.value:.6g})")
        if due.action.dry_run:
            record(due.action, REHEARSED, step, f"Would stop the training: {why}.", due.value)
            continue
        trainer.total_training_steps = min(trainer.total_training_steps, int(step) + 1)
        record(due.action, DONE, step, f"Stops the training after the next step: {why}.", due.value)


def end_actions(args: Args, kwargs: Kwargs, result: object) -> None:
    """Record which actions had nothing to decide by."""
    kit.end_loop(args, kwargs, result)
    if acting.plan is not None:
        end_plan(int(args[0].global_steps))
