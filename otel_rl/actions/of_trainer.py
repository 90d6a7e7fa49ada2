"""Actions of a trainer of transformers, also an inherited one: checkpoints by its own save, stops by its own control.

A checkpoint is saved between two steps, where the trainer would save one itself. So it can be resumed like any other.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.actions.action_plan import DONE, FAILED, REHEARSED, Due, record
from otel_rl.actions.chosen import end_plan, make_plan
from otel_rl.actions.memory import acting
from otel_rl.guard import guard
from otel_rl.runs.action_settings import CHECKPOINT
from otel_rl.trace.stage import Stage
from otel_rl.trace.training import training

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

KEYS: Final = {
    v.LOSS: "loss", v.GRAD_NORM: "grad_norm", v.LEARNING_RATE: "learning_rate", v.EVAL_REWARD: "eval_reward",
}  # fmt: skip
"""By name in the vocabulary, what every trainer calls a number in its log."""
SHARDED: Final = (
    "No best checkpoint of a sharded model is saved: where one rank cannot write, the others would wait for it."
)
LONGEST_NAME: Final = 200
"""Bytes of a metric's name in the name of a folder, which has at most 255 with the value."""
FOLDER: Final = "best-{}"
"""Of an action's checkpoints, beside the trainer's own."""


def begin_actions(trainer: Any) -> None:
    """Make the plan of a training loop that begins, if its user chose actions."""
    reason = SHARDED if _is_sharded(trainer) else ""
    make_plan(KEYS, int(trainer.state.global_step), no_checkpoints=reason)
    if acting.plan is not None:
        acting.read = len(trainer.state.log_history)
        acting.plan.remember(trainer.state.log_history)


def before_save(args: Args, kwargs: Kwargs) -> None:
    """Note whether the trainer saves this step itself."""
    if acting.plan is not None and not training.inner:
        acting.is_saved = bool(args[0].control.should_save)


def after_step(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Do what is due after a step, when the trainer has logged, evaluated and saved."""
    trainer, plan = args[0], acting.plan
    if plan is None or training.inner:
        return
    step, log = int(trainer.state.global_step), trainer.state.log_history
    new, acting.read = log[acting.read :], len(log)
    for due in plan.after_step(step, new):
        do = _save_best if due.action.do == CHECKPOINT else _stop
        do(trainer, due, step, args[3:5])


def end_actions(trainer: Any) -> None:
    """Record which actions had nothing to decide by."""
    end_plan(int(trainer.state.global_step))


def _save_best(trainer: Any, due: Due, step: int, model_and_trial: Args) -> None:
    """Save a checkpoint with the value in its name, and remove the one that is no longer among the best."""
    action, value, best = due.action, due.value or 0.0, due.best
    what = (
        f"{action.metric} is {value:.6g}, among the {action.keep} best"
        if action.keep > 1
        else (f"{action.metric} is {value:.6g}, the best so far")
    )
    if action.dry_run or best is None:
        record(action, REHEARSED, step, f"Would save a checkpoint: {what}.", value)
        return
    output = Path(trainer.args.output_dir) / FOLDER.format(action.name)
    saved = _saved_in(output, action.metric, value, step)
    aside = {"output_dir": str(saved.parent), "push_to_hub": False, "save_total_limit": None}
    dropped = [_saved_in(output, action.metric, *one) for one in best.dropped]
    error = _save(trainer, action.name, saved, model_and_trial, aside, dropped)
    if error:
        record(action, FAILED, step, f"No checkpoint could be saved ({error}): {what}.", value)
        return
    record(action, DONE, step, f"Saved {saved.relative_to(output.parent)}: {what}.", value)
    best.dropped.clear()


def _stop(trainer: Any, due: Due, step: int, model_and_trial: Args) -> None:
    """Let the trainer end its loop after this step, with a checkpoint that can be resumed."""
    action = due.action
    why = f"{action.condition}" + (f" (now {due.value:.6g})" if due.value is not None else "")
    if action.dry_run:
        record(action, REHEARSED, step, f"Would stop the training: {why}.", due.value)
        return
    error = ""
    if _is_sharded(trainer):
        trainer.control.should_save = True  # the trainer saves where its epoch ends, which is now
    elif not acting.is_saved:
        saved = Path(trainer.args.output_dir) / f"checkpoint-{step}"
        error = _save(trainer, action.name, saved, model_and_trial, {})
    trainer.control.should_training_stop = True  # now: a checkpoint has the control's state, too
    if error:
        record(action, FAILED, step, f"Stops the training without a checkpoint ({error}): {why}.", due.value)
    else:
        record(action, DONE, step, f"Stops the training: {why}.", due.value)


def _save(
    trainer: Any,
    name: str,
    saved: Path,
    model_and_trial: Args,
    aside: Mapping[str, Any],
    dropped: Iterable[Path] = (),
) -> str:
    """Save by the trainer's own means, then remove what is dropped; return why saving failed.

    What is half written is removed: nobody shall resume it. The trainer's barrier is left out, at which other ranks
    would wait for one whose disk is full.
    """
    guarded = guard(f"save the checkpoint of {name}")
    with guarded, Stage(v.ACTION, {v.ACTION_NAME: name}):
        with _changed(trainer.args, {**aside, "save_strategy": "no"}):
            trainer._save_checkpoint(*model_and_trial)
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        for one in dropped if trainer.args.should_save else ():
            _remove(one)
    error = guarded.error
    if error is not None and trainer.args.should_save:
        _remove(saved)
    return "" if error is None else getattr(error, "strerror", None) or type(error).__name__


def _saved_in(output: Path, metric: str, value: float, step: int) -> Path:
    name = metric.replace(os.sep, "_").encode()[:LONGEST_NAME].decode(errors="ignore")
    return output / f"{name}={value:.6g}" / f"checkpoint-{step}"


def _remove(saved: Path) -> None:
    """Remove a checkpoint, and what the trainer wrote beside it if that is a folder of ours without another one."""
    shutil.rmtree(saved, ignore_errors=True)
    if "=" in saved.parent.name and not any(saved.parent.glob("checkpoint-*")):
        shutil.rmtree(saved.parent, ignore_errors=True)


def _is_sharded(trainer: Any) -> bool:
    return any(getattr(trainer, f"is_{kind}_enabled", False) for kind in ("fsdp", "deepspeed", "tp"))


@contextmanager
def _changed(settings: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Let settings have other values for a moment."""
    before = {name: getattr(settings, name) for name in values}
    for name, value in values.items():
        setattr(settings, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
