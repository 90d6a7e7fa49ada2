"""The numbers of a step that a loop of a user's own need not record, since it recorded each sample."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.layers.kept_samples import FinishedSample, mean_and_spread
from otel_rl.records import Labels, Point

MOST: Final = 100_000
"""Samples of a step on one process; numbers of more are not known."""


class SampleNumbers:
    """Reads the samples of one step on one process; used by the flusher only."""

    def __init__(self) -> None:
        self.count = 0
        self._rewards: list[float] = []
        self._lengths: list[int] = []
        self._groups: dict[str, list[float]] = {}
        self._functions: dict[str, list[float]] = {}
        self._ended = self._cut = 0

    def add(self, sample: FinishedSample) -> None:
        """Add a sample."""
        self.count += 1
        if self.count > MOST:
            return
        if sample.reward is not None:
            self._rewards.append(sample.reward)
            if sample.group:
                self._groups.setdefault(sample.group, []).append(sample.reward)
        for name, score in sample.rewards.items():
            self._functions.setdefault(name, []).append(score)
        if sample.response_tokens is not None:
            self._lengths.append(sample.length)
        self._ended += bool(sample.finish)
        self._cut += sample.finish == "length"

    def points(self, recorded: Container[str], time_ns: int) -> Iterator[Point]:
        """Yield the numbers of the step that are known of every sample and were not recorded.

        Args:
            recorded: names of the numbers that the loop recorded itself; scores of functions with the function.
            time_ns: the end of the step, ns since 1970.
        """
        for name, label, value in self._numbers() if self.count <= MOST else ():
            if (f"{name}.{label}" if label else name) not in recorded:
                labels: Labels = ((v.REWARD_FUNCTION, label),) if label else ()
                yield Point(name, value, time_ns, labels)

    def _numbers(self) -> Iterator[tuple[str, str, float]]:
        if len(self._rewards) == self.count:
            mean, spread = mean_and_spread(self._rewards)
            yield v.REWARD_SCORE, "", mean
            yield v.REWARD_STD, "", spread
        groups = [rewards for rewards in self._groups.values() if len(rewards) > 1]
        if groups and sum(map(len, groups)) == self.count:
            yield v.REWARD_ZERO_STD, "", sum(map(_are_equal, groups)) / len(groups)
        for name, scores in self._functions.items():
            if len(scores) == self.count:
                yield v.FUNCTION_SCORE, name, sum(scores) / len(scores)
        if len(self._lengths) == self.count:
            yield v.RESPONSE_LENGTH, "", sum(self._lengths) / len(self._lengths)
            yield v.RESPONSE_MIN, "", min(self._lengths)
            yield v.RESPONSE_MAX, "", max(self._lengths)
        if self._ended == self.count:
            yield v.RESPONSE_CLIPPED, "", self._cut / self.count


def _are_equal(rewards: list[float]) -> bool:
    """Return whether all are equal; a set would take one object NaN for equal to itself."""
    return all(one == rewards[0] for one in rewards)
