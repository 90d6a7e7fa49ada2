"""TRL: the stages of rewards, what they were, and the answers to which a reward function gave NaN or infinity.

Source: trl 1.16, ``trainer/grpo_trainer.py`` (``_calculate_rewards``, 1579). A function gives None where it does not
apply, and TRL makes ``torch.nan`` of that: this very object, which it keeps in a local variable until the rewards are a
tensor. A NaN that was computed is another object, so the two can be told apart there. Who writes ``math.nan``, which is
the same object, says None. An answer that no function scored counts for all of them: it trains nothing.

TRL gathers the rewards of all ranks on each. The first rank records their extremes and distribution, as TRL logs their
mean; every rank counts what is no number among its own.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from otel_rl import vocabulary
from otel_rl.guard import attempt
from otel_rl.hooks import Args, CallbackHook, Kwargs
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.integrations.trl.rollouts import mode_of
from otel_rl.integrations.trl.trainer_metrics import GLOBAL, RANK
from otel_rl.metrics.distribution import distribution_of
from otel_rl.probes import deferred
from otel_rl.probes.host_arrays import of_host
from otel_rl.process.state import state
from otel_rl.records import Deferred, Labels, Measured, Point, Value
from otel_rl.trace.gap import end_between
from otel_rl.trace.stage import Stage

ANSWERS = {"_calculate_rewards": "output_reward_func", "_invoke_async": "output"}
"""Functions of TRL that call a reward function, and where they keep what TRL has made of its answer."""
NONE = math.nan
"""``torch.nan`` is this object."""
ADVANTAGES = vocabulary.ADVANTAGE_MEAN, vocabulary.ADVANTAGE_MAX, vocabulary.ADVANTAGE_MIN
DEEPEST = 8
"""Frames of ours between the end of TRL's timer and its caller, at most."""


class Scores(NamedTuple):
    """Rewards of one rollout: of this rank, and on the first rank of all."""

    rewards: Any
    """Tensor of answers and functions; this rank's answers come first."""
    rows: int
    """This rank's answers."""
    weights: Any
    """Tensor of functions, on the host; None where another rank records what all rewards are."""
    functions: tuple[str, ...]
    unanswered: dict[str, int]
    """Answers without a reward, by function; in the tensor they are NaN."""


def begin_rewards(args: Args, kwargs: Kwargs) -> None:
    end_between()
    rollouts.mode = mode_of(args[0])
    rollouts.rewarding = {}
    rollouts.unanswered.clear()


def say_rewards(args: Args, kwargs: Kwargs) -> dict[str, Value]:
    mode = mode_of(args[0])
    rollout = rollouts.open.get(mode)
    said: dict[str, Value] = {vocabulary.MODE: mode, vocabulary.BATCH_SIZE: len(args[2])}
    return said if rollout is None else {**said, vocabulary.TOKENS: rollout.tokens}


def end_rewards(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Keep the rewards for the end of the step."""
    rollouts.rewarding = None
    attempt("keep", "rewards", _keep, args[0], len(args[2]), result)


def _keep(trainer: Any, rows: int, rewards: Any) -> None:
    functions = tuple(map(str, trainer.reward_func_names))
    first = int(trainer.accelerator.process_index) * rows
    kept = rewards.detach()[first : first + rows] if first else rewards.detach()
    if kept.shape[1:] == (len(functions),) and len(kept) >= rows:
        scores = Scores(
            kept,
            rows,
            None if first else getattr(trainer, "reward_weights", None),
            functions,
            dict(rollouts.unanswered),
        )
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


def record_scored(mode: str, labels: Labels) -> None:
    """Record the rewards since the last call, in the flusher.

    Emits: ``rl.reward.nonfinite`` (gauge), the answers of this rank to which each function gave NaN or infinity, 0 too;
    on the first rank ``rl.reward.max``, ``.min`` (gauges) and ``.distribution`` (histogram) of all ranks.
    """
    scored = rollouts.scored.pop(mode, [])
    if not scored:
        return
    use = partial(_records, scored, labels, state.now())
    rewards, kind = [one.rewards for one in scored], scored[0].rewards.device.type
    if kind == "cpu":
        state.add(Deferred(use, (rewards,)))
    else:
        deferred.copy(kind, rewards, use)


def _records(scored: list[Scores], labels: Labels, time_ns: int, hosts: list[Any]) -> Iterator[Point | Measured]:
    import numpy as np

    found: Counter[str] = Counter()
    rewards = []
    for one, values in zip(scored, map(of_host, hosts), strict=True):
        bad = ~np.isfinite(values[: one.rows])
        unscored = int(bad.all(1).sum())
        for function, count in zip(one.functions, bad.sum(0).tolist(), strict=True):
            found[function] += max(unscored, count - one.unanswered.get(function, 0))
        if one.weights is not None:
            with np.errstate(invalid="ignore"):
                sums = np.nansum(values * of_host(one.weights), 1)
            rewards.append(np.where(np.isnan(values).all(1), np.nan, sums))
    for function, count in found.items():
        of_function = ((vocabulary.REWARD_FUNCTION, function), *labels, RANK)
        yield Point(vocabulary.REWARD_NONFINITE, float(count), time_ns, of_function)
    if rewards:
        known = np.concatenate(rewards)
        known = known[~np.isnan(known)]
        for name, extreme in ((vocabulary.REWARD_MAX, np.max), (vocabulary.REWARD_MIN, np.min)):
            if known.size:
                yield Point(name, float(extreme(known)), time_ns, (*labels, GLOBAL))
        yield from distribution_of(known, (*labels, GLOBAL))


def record_advantages(scored: Mapping[str, Any]) -> None:
    """Record the advantages of this rank's rollout of training, each as often as its sample has tokens in the loss.

    Emits: ``rl.advantage.mean``, ``.max``, ``.min`` (gauges); nothing where a derived trainer has one by token.
    """
    advantages, mask, of_tools = (scored.get(key) for key in ("advantages", "completion_mask", "tool_mask"))
    if advantages is None or mask is None or advantages.dim() != 1:
        return
    use, kind = partial(_of_advantages, state.now()), advantages.device.type
    if kind == "cpu":
        masks = [mask] if of_tools is None else [mask, of_tools]
        state.add(Deferred(use, ([advantages, *masks],)))
    else:
        lengths = (mask if of_tools is None else mask * of_tools).sum(1)
        deferred.copy(kind, [advantages.detach(), lengths], use)


def _of_advantages(time_ns: int, hosts: list[Any]) -> Iterator[Point]:
    advantages, *masks = map(of_host, hosts)
    mask = masks[0] if len(masks) == 1 else masks[0] * masks[1]
    lengths = mask.sum(1) if mask.ndim > 1 else mask
    used = advantages[lengths > 0]
    if used.size:
        mean = (advantages * lengths).sum() / lengths.sum()
        values = mean, used.max(), used.min()
        for name, value in zip(ADVANTAGES, values, strict=True):
            yield Point(name, float(value), time_ns, (RANK,))


TIMER = "trl.extras.profiling:ProfilingContext"
REWARDING = (rollouts, "rewarding")
HOOKS = (
    CallbackHook(target=f"{TIMER}.__enter__", during=REWARDING, after=_begin_function),
    CallbackHook(target=f"{TIMER}.__exit__", during=REWARDING, before=_end_function),
)
