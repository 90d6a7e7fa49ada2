"""transformers: the loop of ``Trainer`` — steps, data wait, clipping, callbacks, logging, evaluation, checkpoints.

Runs in every rank; TRL's trainers inherit it. Source: transformers 5.23, ``trainer.py`` (``_run_epoch``, 1740;
``get_batch_samples``, 2281; ``_maybe_log_save_evaluate``, 2215). A step begins where its batches are asked for:
``on_step_begin`` comes after the data wait and still has the number of the step before (measured).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from types import ModuleType
from typing import Any

from otel_rl import vocabulary
from otel_rl.hooks.install import Attachment, Hook
from otel_rl.probes import deferred
from otel_rl.process.hooked import hooking
from otel_rl.process.identity import identifying, training_of
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.gap import end_between
from otel_rl.trace.memory import tracing
from otel_rl.trace.steps import Loop
from otel_rl.trace.throughput import Throughput

PACKAGE = "transformers"
SUPPORTS = ">=4.56,<6"

GLOBAL = ((vocabulary.SCOPE_KEY, "global"),)
DATA = ((vocabulary.IDLE_REASON, "data"),)
MADE = ("system", "system_version", "algorithm", "model_name")
"""What a trainer says of the process when it is made."""
HEARD_LIMIT = 256
"""Answers that are kept; a trainer needs one for each of its 16 events."""


def _asked_to_train(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Look for what has replaced methods of the trainer since it was made, also the one that is the loop."""
    hooking.follow(args[0])


def _begin_loop(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _is_inner():
        state.training.inner += 1
        return
    if "system" not in identifying.learned:  # the trainer was made before this process was forked
        state.identify(**{key: getattr(state.identity, key) for key in MADE})
    trainer = args[0]
    loop = Loop(of=(type(trainer), getattr(getattr(trainer, "args", None), "output_dir", None)))
    loop.said.update(_unlike(training_of(trainer)))
    throughput = Throughput()
    loop.at_end.append(throughput.end_step)
    tracing.loop, state.training.throughput = loop, throughput
    state.training.losses = []


def _unlike(training: dict[str, str]) -> dict[str, Value]:
    """Tell the resource what is trained; where that names another training already, the steps have to say it."""
    state.identify(**training)
    keys = {"algorithm": vocabulary.ALGORITHM, "model_name": vocabulary.MODEL_NAME}
    return {keys[key]: name for key, name in training.items() if name and name != getattr(state.identity, key)}


def _is_inner() -> bool:
    """Whether a loop that begins is work of the one that is open: a callback or a reward function trains a model, too.

    That one may be before its first step: what is trained there is part of set-up.
    """
    loop = tracing.loop
    if loop is None or loop.is_over or loop.left or loop.thread != get_ident():
        return False
    return loop.tree is not None or loop.number < 0


def _loop_over(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    if state.training.inner:
        state.training.inner -= 1
    else:
        _end_loop(args, kwargs)


def _end_loop(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if state.training.inner:
        return
    end_between()
    deferred.resolve()
    if tracing.loop is not None:
        tracing.loop.end()


def _loop_failed(args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException) -> None:
    if state.training.inner:
        state.training.inner -= 1
        return
    end_between(error)
    if tracing.loop is not None:
        tracing.loop.end(error)


def _begin_step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    deferred.resolve()
    if state.training.inner:
        return
    if tracing.loop is None or tracing.loop.is_over:  # a loop that another library has replaced
        _begin_loop(args, kwargs)
    if tracing.loop is not None:
        tracing.loop.begin(args[0].state.global_step + 1)


def _begin_outside(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Evaluation or a checkpoint begins: time of the step, but not of training; inside an evaluation it counts once."""
    if state.training.throughput is not None and not state.training.evaluating:
        state.training.throughput.outside_ns -= monotonic_ns()


def _end_outside(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    if state.training.throughput is not None and not state.training.evaluating:
        state.training.throughput.outside_ns += monotonic_ns()


def _begin_evaluation(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The loop's own, a callback's or the program's; that of several data sets holds one of each."""
    _begin_outside(args, kwargs)
    state.training.evaluating += 1


def _end_evaluation(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    state.training.evaluating = max(state.training.evaluating - 1, 0)  # recording may have begun anew meanwhile
    _end_outside(args, kwargs, result)


def _keep_norm(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """The norm is the same on every rank: rank 0 reports it."""
    if state.identity.rank == 0 and result is not None and not state.training.inner:
        deferred.gauge(vocabulary.GRAD_NORM, result, GLOBAL)


def _norm_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Without clipping the trainer measures the norm; otherwise it passes on the one that clipping gave."""
    return vocabulary.CLIP if kwargs.get("grad_norm") is None else None


def _keep_measured(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    if kwargs.get("grad_norm") is None:
        _keep_norm(args, kwargs, result)


def _trainer_made(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The first sign that this process trains: its set-up is worth a trace from now on."""
    tracing.open_setup()
    hooking.follow(args[0])
    state.identify(system=identifying.learned.get("system", "transformers"))  # what a parent trains with is no matter


def _event_stage(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """No stage for an event that no callback listens to: three of five in every step, of 10 us each.

    Cost: 0.35 us with five callbacks, four times a step. Their classes answer: a trainer may replace callbacks, and
    another trainer's handler may lie where this one's did.
    """
    handler, event = args[0], args[1]
    heard = state.training.heard
    key = (event, *map(type, handler.callbacks))
    is_heard = heard.get(key)
    if is_heard is None:
        from transformers import TrainerCallback

        unheard = getattr(TrainerCallback, event, None)
        is_heard = any(getattr(kind, event, None) is not unheard for kind in key[1:])
        if len(heard) >= HEARD_LIMIT:
            heard.clear()
        heard[key] = is_heard
    return vocabulary.LOG if is_heard else None


HOOKS = (
    Hook(target="transformers.trainer:Trainer.__init__", before=_trainer_made),
    Hook(target="transformers.trainer:Trainer.train", before=_asked_to_train),
    Hook(
        target="transformers.trainer:Trainer._inner_training_loop",
        before=_begin_loop,
        after=_loop_over,
        failed=_loop_failed,
    ),
    Hook(target="transformers.trainer:Trainer._finalize_training", before=_end_loop, optional=True),
    Hook(
        target="transformers.trainer:Trainer.get_batch_samples",
        stage=vocabulary.IDLE,
        before=_begin_step,
        attributes=DATA,
    ),
    Hook(target="transformers.trainer:Trainer.compute_loss", stage=vocabulary.FORWARD),
    Hook(target="transformers.trainer:Trainer._clip_grad_norm", stage=vocabulary.CLIP, after=_keep_norm, optional=True),
    Hook(
        target="transformers.trainer:Trainer._get_grad_norm",
        stage=_norm_stage,
        after=_keep_measured,
        by_name=True,
        optional=True,
    ),
    Hook(target="transformers.trainer_callback:CallbackHandler.call_event", stage=_event_stage),
    Hook(target="transformers.trainer:Trainer.log", stage=vocabulary.LOG),
    *(
        Hook(
            target=f"transformers.trainer:Trainer.{name}",
            stage=vocabulary.EVALUATE,
            before=_begin_evaluation,
            after=_end_evaluation,
            failed=_end_evaluation,
        )
        for name in ("_evaluate", "evaluate")
    ),
    Hook(
        target="transformers.trainer:Trainer._save_checkpoint",
        stage=vocabulary.CHECKPOINT,
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


ATTACHMENTS = (Attachment("transformers.integrations.integration_utils", _offer_callback),)
