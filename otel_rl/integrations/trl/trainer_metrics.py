"""TRL's own metrics of every step, under canonical names where there is one.

TRL averages over ``logging_steps``, repeats global values on every rank and drops NaN; here the new entries of each
step are read before that. What TRL has reduced over the ranks is emitted once, by rank 0, with ``rl.scope = global``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
PER_RANK = frozenset({"step_time"})
"""What TRL does not reduce over the ranks."""
GLOBAL: Label = (vocabulary.SCOPE_KEY, "global")
RANK: Label = (vocabulary.SCOPE_KEY, "rank")
EVALUATION: Label = (vocabulary.MODE, "eval")


class Reader:
    """Remembers which entries of a trainer's metric lists have been read, and under which name each metric goes out."""

    def __init__(self, labels: tuple[Label, ...]) -> None:
        self._labels = labels
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
            value = new[0] if len(new) == 1 and type(new[0]) is float else _mean(new)
            if value is not None:
                points.append(Point(series[0], value, time_ns, series[1]))
        return points

    def _name(self, name: str) -> Series | None:
        """Return the series of a metric; None where another rank reports it, or if there are too many names."""
        is_global = name not in PER_RANK
        found = self._canonical(name)
        if found is None:
            return None
        canonical, own = found
        series = (canonical, (*own, *self._labels, GLOBAL if is_global else RANK))
        self._series[name] = None if is_global and state.identity.rank != 0 else series
        return self._series[name]

    def _canonical(self, name: str) -> Series | None:
        kind, _, rest = name.partition("/")
        function, _, statistic = rest.rpartition("/")
        if kind == "rewards" and function and statistic in OF_FUNCTION:
            return OF_FUNCTION[statistic], ((vocabulary.REWARD_FUNCTION, function),)
        if name == "reward" and EVALUATION in self._labels:
            return vocabulary.EVAL_REWARD, ()
        return CANONICAL.get(name) or series_of(name, vocabulary.TRL)


def _mean(entries: list[Any]) -> float | None:
    """Return the mean of the numbers among the entries; None where none of them is one."""
    numbers = [number for number in map(as_number, entries) if number is not None]
    return sum(numbers) / len(numbers) if numbers else None


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


def keep_loss(loss: Any) -> None:
    """Keep a micro-batch's loss for the end of the step."""
    loop = tracing.loop
    if loop is not None and loop.tree is not None:  # a loss outside a step counts nowhere
        rollouts.losses.append(loss.detach())


def _record(trainer: Any, mode: str, labels: tuple[Label, ...]) -> None:
    metrics = getattr(trainer, "_metrics", None)
    if metrics is None:
        return
    reader = rollouts.readers.get((id(trainer), mode))
    if reader is None:
        reader = rollouts.readers[id(trainer), mode] = Reader(labels)
    lists = metrics[mode]
    complete = tuple(lists), tuple(lists.values()), tuple(map(len, lists.values()))
    state.add(Deferred(reader.points, (*complete, state.now())))
