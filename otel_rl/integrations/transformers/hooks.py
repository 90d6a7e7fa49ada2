"""Hooks on ``Trainer`` of transformers: steps, data wait, clipping, callbacks, logging, evaluation, checkpoints.

Runs in every rank; TRL's trainers inherit it. Source: transformers 5.23, ``trainer.py`` (``_run_epoch``, 1740;
``get_batch_samples``, 2281; ``_maybe_log_save_evaluate``, 2215). A step begins where its batches are asked for:
``on_step_begin`` comes after the data wait and still has the number of the step before (measured).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import ModuleType
from typing import Any

from otel_rl import vocabulary
from otel_rl.actions.memory import acting
from otel_rl.actions.of_trainer import after_step, before_save, begin_actions, end_actions
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.hooks import Args, Attachment, CallbackHook, Integration, Kwargs, StageHook, Verified
from otel_rl.probes import deferred
from otel_rl.process.hooked import hooking
from otel_rl.process.identity import identifying, training_of
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.gap import end_between
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from otel_rl.trace.throughput import Throughput
from otel_rl.trace.training import training
from otel_rl.trace.tree import say_of_setup

TRAINER = "transformers.trainer:Trainer"
GLOBAL = ((vocabulary.SCOPE_KEY, "global"),)
MADE = ("system", "system_version", "algorithm", "model_name")
"""What the resource gets from a trainer when it is made."""


def _asked_to_train(args: Args, kwargs: Kwargs) -> None:
    """Find what has replaced methods of the trainer since it was made."""
    if not _is_inner():
        training.waits_for, training.step_over = "data", None
    hooking.follow(args[0])


def _begin_loop(args: Args, kwargs: Kwargs) -> None:
    if _is_inner():
        training.inner += 1
        return
    if "system" not in identifying.learned:  # the trainer was made before this process was forked
        state.identify(**{key: getattr(state.identity, key) for key in MADE})
    trainer = args[0]
    loop = Loop(of=(type(trainer), getattr(getattr(trainer, "args", None), "output_dir", None)))
    loop.said.update(_unlike(training_of(trainer)))
    throughput = Throughput()
    loop.at_end.append(throughput.end_step)
    tracing.loop, training.throughput = loop, throughput


def _unlike(trained: dict[str, str]) -> dict[str, Value]:
    """Put what is trained into the resource; return it for the steps where the resource names another training."""
    state.identify(**trained)
    keys = {"algorithm": vocabulary.ALGORITHM, "model_name": vocabulary.MODEL_NAME}
    return {keys[key]: name for key, name in trained.items() if name and name != getattr(state.identity, key)}


def _is_inner() -> bool:
    """Return whether a loop that begins is work of the open one: a callback or a reward function trains a model, too.

    That one may be before its first step: what is trained there is part of set-up.
    """
    loop = tracing.loop
    if loop is None or loop.is_over or loop.left or loop.thread != get_ident():
        return False
    return loop.tree is not None or loop.number < 0


def _loop_over(args: Args, kwargs: Kwargs, result: Any) -> None:
    if training.inner:
        training.inner -= 1
    else:
        _end_loop(args, kwargs)


def _end_loop(args: Args, kwargs: Kwargs) -> None:
    if training.inner:
        return
    if acting.plan is not None:
        attempt("end", "the actions", end_actions, args[0])
    end_between()
    deferred.resolve()
    if tracing.loop is not None:
        tracing.loop.end()


def _loop_failed(args: Args, kwargs: Kwargs, error: BaseException) -> None:
    if training.inner:
        training.inner -= 1
        return
    acting.plan = None
    end_between(error)
    if tracing.loop is not None:
        tracing.loop.end(error)


def _begin_step(args: Args, kwargs: Kwargs) -> None:
    deferred.resolve()
    if training.inner:
        return
    if tracing.loop is None or tracing.loop.is_over:  # a loop that another library has replaced
        _begin_loop(args, kwargs)
    if tracing.loop is not None:
        if tracing.phase is not None:
            attempt("read", "the settings of a trainer", _say_settings, args[0])
            attempt("begin", "the actions", begin_actions, args[0])
        tracing.loop.begin(args[0].state.global_step + 1)


def _say_wait(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.IDLE_REASON: training.waits_for}


def _say_settings(trainer: Any) -> None:
    """Record the settings on the container of set-up, which ends with the first step; they are all known then."""
    said: dict[str, Value] = {vocabulary.SETTINGS_LEARNING_RATE: float(trainer.args.learning_rate)}
    if trainer.state.max_steps > 0:
        said[vocabulary.SETTINGS_STEPS] = int(trainer.state.max_steps)
    if trainer.args.max_grad_norm:
        said[vocabulary.SETTINGS_GRADIENT] = float(trainer.args.max_grad_norm)
    say_of_setup(said)


def _step_over(args: Args, kwargs: Kwargs) -> None:
    if training.step_over is not None and not training.inner:
        training.step_over(args[0])
    before_save(args, kwargs)


def _begin_outside(args: Args, kwargs: Kwargs) -> None:
    """Begin time of the step that is none of training; inside an evaluation it counts once."""
    if training.throughput is not None and not training.evaluating:
        training.throughput.outside_ns -= monotonic_ns()


def _end_outside(args: Args, kwargs: Kwargs, result: Any) -> None:
    if training.throughput is not None and not training.evaluating:
        training.throughput.outside_ns += monotonic_ns()


def _begin_evaluation(args: Args, kwargs: Kwargs) -> None:
    """Begin an evaluation of the loop, a callback or the program; that of several data sets holds one of each."""
    _begin_outside(args, kwargs)
    training.evaluating += 1


def _end_evaluation(args: Args, kwargs: Kwargs, result: Any) -> None:
    training.evaluating = max(training.evaluating - 1, 0)  # recording may have begun anew meanwhile
    _end_outside(args, kwargs, result)


def _keep_norm(args: Args, kwargs: Kwargs, result: Any) -> None:
    if state.identity.rank == 0 and result is not None and not training.inner:
        deferred.gauge(vocabulary.GRAD_NORM, result, GLOBAL)


def _norm_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return a stage only without clipping: otherwise the trainer passes on the norm that clipping gave."""
    return vocabulary.CLIP if kwargs.get("grad_norm") is None else None


def _keep_measured(args: Args, kwargs: Kwargs, result: Any) -> None:
    if kwargs.get("grad_norm") is None:
        _keep_norm(args, kwargs, result)


def _trainer_made(args: Args, kwargs: Kwargs) -> None:
    """Open the set-up: this is the first sign that the process trains."""
    tracing.open_setup()
    hooking.follow(args[0])
    state.identify(system=identifying.learned.get("system", "transformers"))  # what a parent trains with is no matter


def _event_stage(args: Args, kwargs: Kwargs) -> str | None:
    """Return no stage for an event that no callback listens to: three of five in every step, of 10 us each."""
    from transformers import TrainerCallback

    handler, event = args[0], args[1]
    unheard = getattr(TrainerCallback, event, None)
    is_heard = any(getattr(type(one), event, None) is not unheard for one in handler.callbacks)
    return vocabulary.LOG if is_heard else None


def _written(args: Args, kwargs: Kwargs, result: object) -> dict[str, Value] | None:
    """Return the size of the folder that ``_save_checkpoint(self, model, trial)`` wrote, on the process that saves."""
    trainer = args[0]
    if not trainer.args.should_save:
        return None
    folder = Path(trainer._get_output_dir(trial=args[2])) / f"checkpoint-{trainer.state.global_step}"
    sizes = (one.stat().st_size for one in folder.rglob("*") if one.is_file())
    return {vocabulary.CHECKPOINT_BYTES: sum(sizes)}


HOOKS = (
    CallbackHook(target=f"{TRAINER}.__init__", before=_trainer_made),
    CallbackHook(target=f"{TRAINER}.train", before=_asked_to_train),
    CallbackHook(target=f"{TRAINER}._inner_training_loop", before=_begin_loop, after=_loop_over, failed=_loop_failed),
    CallbackHook(target=f"{TRAINER}._finalize_training", before=_end_loop, optional=True),
    StageHook(target=f"{TRAINER}.get_batch_samples", stage=vocabulary.IDLE, before=_begin_step, attributes=_say_wait),
    StageHook(target=f"{TRAINER}.compute_loss", stage=vocabulary.FORWARD),
    StageHook(target=f"{TRAINER}._clip_grad_norm", stage=vocabulary.CLIP, after=_keep_norm, optional=True),
    StageHook(target=f"{TRAINER}._get_grad_norm", stage=_norm_stage, after=_keep_measured, by_name=True, optional=True),
    StageHook(target="transformers.trainer_callback:CallbackHandler.call_event", stage=_event_stage),
    StageHook(target=f"{TRAINER}.log", stage=vocabulary.LOG),
    CallbackHook(target=f"{TRAINER}._maybe_log_save_evaluate", before=_step_over, after=after_step),
    *(
        StageHook(
            target=f"{TRAINER}.{name}",
            stage=vocabulary.EVALUATE,
            before=_begin_evaluation,
            after=_end_evaluation,
            failed=_end_evaluation,
        )
        for name in ("_evaluate", "evaluate")
    ),
    StageHook(
        target=f"{TRAINER}._save_checkpoint",
        stage=vocabulary.CHECKPOINT,
        attributes=((vocabulary.CHECKPOINT_FORMAT, "transformers"),),
        capture=_written,
        before=_begin_outside,
        after=_end_outside,
        failed=_end_outside,
    ),
)


def _offer_callback(module: ModuleType) -> Callable[[], object]:
    """Make ``report_to=["otel"]`` work: recording does not depend on it, but the name must be known."""
    from transformers import TrainerCallback

    callback = type("OtelRlCallback", (TrainerCallback,), {"__doc__": "Says that this run reports to otel_rl."})
    module.INTEGRATION_TO_CALLBACK["otel"] = callback
    return lambda: module.INTEGRATION_TO_CALLBACK.pop("otel", None)


INTEGRATION = Integration(
    name="transformers",
    package="transformers",
    supports=">=4.56,<6",
    records="its trainer",
    verified=Verified.REAL,
    needs=("torch", "accelerate"),
    hooks=HOOKS,
    attachments=(Attachment("transformers.integrations.integration_utils", _offer_callback),),
)
