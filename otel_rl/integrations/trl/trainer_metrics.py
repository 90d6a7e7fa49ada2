"""TRL's own metrics of every step, under canonical names where there is one.

TRL averages over ``logging_steps``, repeats global values on every rank and drops NaN; here the new entries of each
step are read before that. What TRL has reduced over the ranks is emitted once, by rank 0, with ``rl.scope = global``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

from otel_rl import vocabulary
from otel_rl.integrations.trl.memory import rollouts
from otel_rl.layers.memory import say_of_step
from otel_rl.metrics.naming import Series, series_of
from otel_rl.metrics.record import as_number
from otel_rl.probes import deferred
from otel_rl.process.state import state
from otel_rl.records import Deferred, Point
from otel_rl.trace.memory import tracing

Label = tuple[str, str]

CANONICAL: dict[str, tuple[str, tuple[Label, ...]]] = {
    "reward": (vocabulary.REWARD_SCORE, ()),
    "reward_std": (vocabulary.REWARD_STD, ()),
    "frac_reward_zero_std": (vocabulary.REWARD_ZERO_STD, ()),
    "kl": (vocabulary.KL_REFERENCE, ()),
    "entropy": (vocabulary.ENTROPY, ()),
    "policy_loss": (vocabulary.LOSS_TERM, ((vocabulary.LOSS_TYPE, "policy"),)),
    "clip_ratio/low_mean": (vocabulary.CLIP_SIDE_FRACTION, ((vocabulary.CLIP_SIDE, "low"),)),
    "clip_ratio/high_mean": (vocabulary.CLIP_SIDE_FRACTION, ((vocabulary.CLIP_SIDE, "high"),)),
    "clip_ratio/region_mean": (vocabulary.CLIP_FRACTION, ()),
    "completions/mean_length": (vocabulary.RESPONSE_LENGTH, ()),
    "completions/min_length": (vocabulary.RESPONSE_MIN, ()),
    "completions/max_length": (vocabulary.RESPONSE_MAX, ()),
    "completions/clipped_ratio": (vocabulary.RESPONSE_CLIPPED, ()),
}
"""A name that is not here passes through as TRL calls it, below ``trl.``."""
OF_FUNCTION = {"mean": vocabulary.FUNCTION_SCORE, "std": vocabulary.FUNCTION_STD}
PER_RANK = "step_time", "perf/"
"""How the names begin of what TRL does not reduce over the ranks."""
GLOBAL: Label = (vocabulary.SCOPE_KEY, "global")
RANK: Label = (vocabulary.SCOPE_KEY, "rank")
EVALUATION: Label = (vocabulary.MODE, "eval")


class Naming(NamedTuple):
    """What the numbers of a trainer mean."""

    canonical: Mapping[str, tuple[str, tuple[Label, ...]]]
    reduce: Callable[[str, list[Any]], float | None]
    """``(name, entries)``: returns the number of a step with several entries; None where none of them is one."""
    statistics: Mapping[str, str]
    """Our names of a reward function's numbers, by what follows its name."""


class Reader:
    """Remembers which entries of a trainer's metric lists have been read, and under which name each metric goes out."""

    def __init__(self, labels: tuple[Label, ...], naming: Naming) -> None:
        self._labels = labels
        self._naming = naming
        self._series: dict[str, Series | None] = {}
        self._read: dict[str, tuple[list[Any], int]] = {}
        """The entries of each metric, and how many of them have been read."""

    def points(
        self, names: Sequence[str], lists: Sequence[list[Any]], ends: Sequence[int], time_ns: int
    ) -> list[Point]:
        """Return the mean of what was appended to each list since the last call; runs in the flusher.

        A list that was replaced is new: TRL clears by that, and sets its running token count so.

        Args:
            names: of the metrics.
            lists: their entries.
            ends: how much of each list counts: TRL may have appended since.
            time_ns: when they were complete, ns since 1970.
        """
        points = []
        for name, entries, end in zip(names, lists, ends, strict=True):
            known, read = self._read.get(name, ([], 0))
            self._read[name] = entries, end
            start = read if known is entries and read <= end else 0
            series = self._series[name] if name in self._series else self._name(name)
            if series is None or start == end:
                continue
            new = entries[start:end]
            value = new[0] if len(new) == 1 and type(new[0]) is float else self._naming.reduce(name, new)
            if value is not None:
                points.append(Point(series[0], value, time_ns, series[1]))
        return points

    def _name(self, name: str) -> Series | None:
        """Return the series of a metric; None where another rank reports it, or if there are too many names."""
        is_global = not name.startswith(PER_RANK)
        found = self._canonical(name)
        if found is None:
            return None
        canonical, own = found
        series = (canonical, (*own, *self._labels, GLOBAL if is_global else RANK))
        self._series[name] = None if is_global and state.identity.rank != 0 else series
        return self._series[name]

    def _canonical(self, name: str) -> Series | None:
        kind, _, rest = name.partition("/")
        known = self._naming.statistics
        function, _, statistic = (rest, "", "") if "" in known else rest.rpartition("/")
        if kind == "rewards" and function and statistic in known:
            return known[statistic], ((vocabulary.REWARD_FUNCTION, function),)
        if name == "reward" and EVALUATION in self._labels:
            return vocabulary.EVAL_REWARD, ()
        return self._naming.canonical.get(name) or series_of(name, vocabulary.TRL)


def _mean(name: str, entries: list[Any]) -> float | None:
    """Return the mean of the numbers among the entries."""
    numbers = [number for number in map(as_number, entries) if number is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _reduced(name: str, entries: list[Any]) -> float | None:
    """Reduce the entries as AsyncGRPO does (``_reduce_metric``, 81): a pair is a rate, words say what else is none."""
    if isinstance(entries[0], tuple):
        top, bottom = map(sum, zip(*entries, strict=True))
        return top / bottom if bottom else None
    numbers = [number for number in map(as_number, entries) if number is not None and not isnan(number)]
    words = name.rpartition("/")[2].split("_")
    for word, reduce in (("total", sum), ("max", max), ("min", min)):
        if numbers and word in words:
            return float(reduce(numbers))
    return _mean(name, numbers)


SYNCHRONOUS = Naming(CANONICAL, _mean, OF_FUNCTION)
ASYNCHRONOUS = Naming({**CANONICAL, "kl": (vocabulary.KL_POLICY, ())}, _reduced, {"": vocabulary.FUNCTION_SCORE})
"""AsyncGRPO has no reference: what it calls ``kl`` is that of the policy and the one that made the samples."""


PAIRS = Naming({"objective/scores": (vocabulary.REWARD_SCORE, ())}, _mean, {})
"""OnlineDPO's: its ``rewards/...`` are implicit ones."""


def _naming_of(trainer: Any) -> Naming:
    if hasattr(trainer, "rollout_queue"):
        return ASYNCHRONOUS
    return SYNCHRONOUS if hasattr(trainer, "_metrics") else PAIRS


def step_metrics(trainer: Any) -> None:
    """Record what the trainer measured in the step that ends now."""
    _record(trainer, "train", ())
    if trainer.state.epoch is not None and state.identity.rank == 0:
        state.add(Point(vocabulary.EPOCH, float(trainer.state.epoch), state.now(), (GLOBAL,)))
    losses, rollouts.losses = rollouts.losses, []
    if not losses:
        return
    time_ns = state.now()
    is_scaled = getattr(trainer, "loss_is_scaled_for_ga", True)  # GRPO's; of RLOO's the trainer of transformers takes
    parts = 1 if is_scaled else trainer.current_gradient_accumulation_steps  # the mean over the micro-batches

    def use(values: list[float]) -> tuple[Point]:
        return (Point(vocabulary.LOSS, sum(values) / parts, time_ns, (RANK,)),)

    deferred.read(losses, use)


def evaluation_metrics(trainer: Any) -> None:
    """Record what an evaluation measured; never mixed with training."""
    _record(trainer, "eval", (EVALUATION,))


def say_logged_loss(trainer: Any, logged: dict[str, Any]) -> None:
    """Let the line of the update have the loss of all ranks, where TRL logs that of every step."""
    if "loss" in logged and trainer.state.logging_steps == 1 and state.identity.rank == 0:
        state.add(Deferred(say_of_step, (tracing.container, {vocabulary.LOSS: float(logged["loss"])})))


def record_logged(trainer: Any, logged: Mapping[str, Any]) -> None:
    """Record numbers that the trainer has reduced itself, as those of this moment."""
    reader = rollouts.readers.get((id(trainer), "train"))
    if reader is not None:
        lists = [[value] for value in logged.values()]
        state.add(Deferred(reader.points, (tuple(logged), lists, [1] * len(lists), state.now())))


def keep_loss(loss: Any) -> None:
    """Keep a micro-batch's loss for the end of the step."""
    loop = tracing.loop
    if loop is not None and loop.tree is not None:  # a loss outside a step counts nowhere
        rollouts.losses.append(loss.detach())


def _record(trainer: Any, mode: str, labels: tuple[Label, ...]) -> None:
    metrics = getattr(trainer, "_metrics", None) or {"train": getattr(trainer, "stats", {})}
    if mode not in metrics:
        return
    reader = rollouts.readers.get((id(trainer), mode))
    if reader is None:
        reader = rollouts.readers[id(trainer), mode] = Reader(labels, _naming_of(trainer))
    lists = metrics[mode]
    complete = tuple(lists), tuple(lists.values()), tuple(map(len, lists.values()))
    state.add(Deferred(reader.points, (*complete, state.now())))
