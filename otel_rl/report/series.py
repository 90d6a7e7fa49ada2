"""The numbers of every step: reward, loss and what tells a stable run from an unstable one."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.trend import mean, trend
from otel_rl.journal.read import PointView
from otel_rl.report.collect import StepRecord
from otel_rl.report.model import Rank, Series
from otel_rl.report.pieces import rank_of, text

NAMES: Final = (
    v.REWARD_SCORE, v.EVAL_REWARD, v.REWARD_ZERO_STD, v.LOSS, v.GRAD_NORM, v.KL_REFERENCE, v.KL_POLICY, v.ENTROPY,
    v.CLIP_FRACTION, v.RESPONSE_LENGTH, v.RESPONSE_CLIPPED, v.LEARNING_RATE,
)  # fmt: skip
"""The series of a report in their order."""

Qualifiers = tuple[tuple[str, str], ...]
StepKey = tuple[str, int | None, int]
"""Loop and number of a step; a point outside of any step is told apart by its time."""
Value = tuple[int, str, float]
"""Time, attempt, number."""
Steps = defaultdict[StepKey, list[Value]]


class _Calendar:
    """Says in which step of its rank a point lies: points are stamped at the end of their step."""

    def __init__(self, records: Iterable[StepRecord]) -> None:
        self._steps: defaultdict[tuple[str, Rank], list[StepRecord]] = defaultdict(list)
        for record in records:
            self._steps[record.attempt, record.rank].append(record)
        for steps in self._steps.values():
            steps.sort(key=lambda record: record.step.end_ns)

    def step(self, point: PointView) -> StepKey:
        steps = self._steps.get((text(point.resource, v.ATTEMPT_ID), rank_of(point.resource)), [])
        index = bisect_left(steps, point.time_ns, key=lambda record: record.step.end_ns)
        if index < len(steps) and steps[index].step.begin_ns < point.time_ns:
            return steps[index].step.loop, steps[index].step.iteration, 0
        return "", None, point.time_ns


def all_series(points: Iterable[PointView], records: Sequence[StepRecord]) -> list[Series]:
    """Line the points of all ranks up by step; of a step that a restart repeated the newest attempt counts."""
    return sorted(_line_up(points, records), key=lambda one: (NAMES.index(one.name), sorted(one.qualifiers.items())))


def is_own(point: PointView) -> bool:
    """Whether a point is one that the training recorded by itself: a gauge that is none of ours, without attributes."""
    return point.kind == "gauge" and point.name not in v.METRICS and not point.attributes


def own_series(points: Iterable[PointView], records: Sequence[StepRecord]) -> list[Series]:
    """Line the training's own numbers up by step likewise; several values in one step become their mean."""
    return sorted(_line_up(points, records), key=lambda one: one.name)


def _line_up(points: Iterable[PointView], records: Sequence[StepRecord]) -> list[Series]:
    calendar = _Calendar(records)
    found: defaultdict[tuple[str, str, Qualifiers], Steps] = defaultdict(lambda: defaultdict(list))
    for point in points:
        if isinstance(point.value, int | float):
            value = (point.time_ns, text(point.resource, v.ATTEMPT_ID), float(point.value))
            found[point.name, point.unit, _qualifiers(point)][calendar.step(point)].append(value)
    return [_series(*head, steps) for head, steps in found.items()]


def _qualifiers(point: PointView) -> Qualifiers:
    return tuple(sorted((key, str(value)) for key, value in point.attributes.items() if key != v.SCOPE_KEY))


def _series(name: str, unit: str, qualifiers: Qualifiers, steps: dict[StepKey, list[Value]]) -> Series:
    rows = sorted(((_newest(values), key) for key, values in steps.items()), key=lambda row: row[0][0][0])
    statistic = dict(qualifiers).get(v.STATISTIC, "")
    numbers = [_combine([number for _, _, number in values], statistic) for values, _ in rows]
    found = trend(numbers)
    return Series(
        name=name,
        qualifiers=dict(qualifiers),
        unit=unit,
        first=found.first,
        last=found.last,
        mean=found.mean,
        low=found.low,
        high=found.high,
        nonfinite=sum(not math.isfinite(number) for values, _ in rows for _, _, number in values),
        steps=[key[1] for _, key in rows],
        values=[value if math.isfinite(value) else None for value in numbers],
    )


def _newest(values: list[Value]) -> list[Value]:
    """Keep the values of the attempt that reported last, in order of time."""
    attempt = max(values)[1]
    return sorted(value for value in values if value[1] == attempt)


def _combine(numbers: Sequence[float], statistic: str) -> float:
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return math.nan
    return {"min": min, "max": max}.get(statistic, mean)(finite)
