"""TRL: the stages of rewards, and the answers to which a reward function gave NaN or infinity.

Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_calculate_rewards``, 1579). A function gives None where it does not
apply, and TRL makes ``torch.nan`` of that: this very object, which it keeps in a local variable until the rewards are a
tensor. A NaN that was computed is another object, so the two can be told apart there. Who writes ``math.nan``, which is
the same object, says None. An answer that no function scored counts for all of them: it trains nothing.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Kwargs
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.rollouts import mode_of
from otel_rl.probes import deferred
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Labels, Point, Value
from otel_rl.trace.gap import end_between
from otel_rl.trace.stage import Stage

ANSWERS = {"_calculate_rewards": "output_reward_func", "_invoke_async": "output"}
"""Functions of TRL that call a reward function, and where they keep what TRL has made of its answer."""
NONE = math.nan
"""``torch.nan`` is this object."""
DEEPEST = 8
"""Frames of ours between the end of TRL's timer and its caller, at most."""


class Scores(NamedTuple):
    """Rewards of one rollout on this rank."""

    rewards: Any
    """Tensor of answers and functions."""
    functions: tuple[str, ...]
    unanswered: dict[str, int]
    """Answers without a reward, by function; in the tensor they are NaN."""


def begin_rewards(args: Args, kwargs: Kwargs) -> None:
    end_between()
    rollouts.mode = mode_of(args[0])
    rollouts.rewarding = {}
    rollouts.unanswered.clear()


def say_rewards(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {vocabulary.MODE: mode_of(args[0]), vocabulary.BATCH_SIZE: len(args[2])}


def end_rewards(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Keep the rewards of this rank for the end of the step; TRL has gathered those of all."""
    rollouts.rewarding = None
    attempt("keep", "rewards", _keep, args[0], len(args[2]), result)


def _keep(trainer: Any, rows: int, rewards: Any) -> None:
    functions = tuple(map(str, trainer.reward_func_names))
    first = int(trainer.accelerator.process_index) * rows
    own = rewards.detach()[first : first + rows]
    if own.shape == (rows, len(functions)):
        scores = Scores(own, functions, dict(rollouts.unanswered))
        rollouts.scored.setdefault(mode_of(trainer), []).append(scores)


def _begin_function(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Open the stage of a reward function: TRL times each, the asynchronous ones in their own tasks."""
    rewarding, function = rollouts.rewarding, str(args[0].name).partition(".")[2]
    if rewarding is None or function == "_calculate_rewards":
        return
    attributes: dict[str, Value] = {vocabulary.REWARD_FUNCTION: function, vocabulary.MODE: rollouts.mode}
    rewarding[args[0]] = Stage(f"{vocabulary.REWARD} {function}", attributes, coarse=True).__enter__()


def _end_function(args: Args, kwargs: Kwargs) -> None:
    span = rollouts.rewarding.pop(args[0], None) if rollouts.rewarding else None
    if span is None:
        return
    error = args[2] if len(args) > 2 else None
    span.__exit__(type(error) if error is not None else None, error, None)
    if error is None:
        rollouts.unanswered[str(args[0].name).partition(".")[2]] += _unanswered()


def _unanswered() -> int:
    """Count what TRL has made of None in the function that ends its timer now; no reward is read."""
    frame = sys._getframe(1)
    for _ in range(DEEPEST):
        name = ANSWERS.get(frame.f_code.co_name)
        if name is not None:
            answers = frame.f_locals.get(name)
            return sum(answer is NONE for answer in answers) if isinstance(answers, list) else 0
        if frame.f_back is None:
            break
        frame = frame.f_back
    return 0


def record_nonfinite(mode: str, labels: Labels) -> None:
    """Record the answers of this rank, since the last call, to which each function gave NaN or infinity.

    Emits: ``rl.reward.nonfinite`` (gauge), 0 too.
    """
    scored = rollouts.scored.pop(mode, [])
    if not scored:
        return
    use = partial(_points, [(one.functions, one.unanswered) for one in scored], labels, state.now())
    kind = scored[0].rewards.device.type
    if kind == "cpu":
        state.add(Deferred(_count_on_host, ([one.rewards for one in scored], use)))
    else:
        deferred.send(kind, partial(_count_on_device, [one.rewards for one in scored]), use)


def _count_on_host(rewards: list[Any], use: Any) -> Iterable[Point]:
    import numpy as np

    bad = [~np.isfinite(of_host(one)) for one in rewards]
    points: Iterable[Point] = use([[*one.sum(0).tolist(), int(one.all(1).sum())] for one in bad])
    return points


def _count_on_device(rewards: list[Any]) -> Any:
    import torch

    bad = [~torch.isfinite(one) for one in rewards]
    return torch.stack([torch.cat([one.sum(0), one.all(1).sum(0, keepdim=True)]) for one in bad])


def _points(
    known: list[tuple[tuple[str, ...], dict[str, int]]], labels: Labels, time_ns: int, counts: list[list[float]]
) -> list[Point]:
    """Make the points of counts by function, of which the last is that of answers without any reward."""
    found: Counter[str] = Counter()
    for (functions, unanswered), (*bad, unscored) in zip(known, counts, strict=True):
        for function, count in zip(functions, bad, strict=True):
            found[function] += int(max(unscored, count - unanswered.get(function, 0)))
    return [
        Point(vocabulary.REWARD_NONFINITE, float(count), time_ns, ((vocabulary.REWARD_FUNCTION, function), *labels))
        for function, count in found.items()
    ]


TIMER = "trl.extras.profiling:ProfilingContext"
REWARDING = (rollouts, "rewarding")
HOOKS = (
    CallbackHook(target=f"{TIMER}.__enter__", during=REWARDING, after=_begin_function),
    CallbackHook(target=f"{TIMER}.__exit__", during=REWARDING, before=_end_function),
)
