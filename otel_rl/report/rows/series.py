"""Numbers over the steps."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import mean, trend
from otel_rl.journal.read import PointView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Series
from otel_rl.report.findings.unmade import Making
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import text

NAMES: Final = (
    v.REWARD_SCORE, v.REWARD_STD, v.REWARD_MAX, v.REWARD_MIN, v.FUNCTION_SCORE, v.FUNCTION_STD, v.REWARD_NONFINITE,
    v.EVAL_REWARD, v.REWARD_ZERO_STD, v.LOSS, v.LOSS_TERM, v.GRAD_NORM, v.KL_REFERENCE, v.KL_POLICY, v.ENTROPY,
    v.CLIP_FRACTION, v.CLIP_SIDE_FRACTION, v.RESPONSE_LENGTH, v.RESPONSE_MIN, v.RESPONSE_MAX, v.RESPONSE_CLIPPED,
    v.LEARNING_RATE, v.SAMPLE_LAG, v.LOGPROB_DIFFERENCE, v.REQUEST_RATIO, v.GROUPS,
)  # fmt: skip
ONLY_RULES: Final = (v.REQUEST_RATIO, v.GROUPS)
"""Of these, what no part of a report but rules reads."""
EXTREMES: Final = {v.RESPONSE_MIN: min, v.RESPONSE_MAX: max, v.REWARD_MIN: min, v.REWARD_MAX: max}
Qualifiers = tuple[tuple[str, str], ...]
Head = tuple[str, str, Qualifiers]
PlaceOfPoint = tuple[str, int | None, int]
Moments = Sequence[tuple[str, PlaceOfPoint, int]]
"""Attempt, step and time of each moment."""
Value = tuple[int, str, float]
RankOfAttempt = tuple[str, Rank]


@dataclass(frozen=True, slots=True)
class RankSeries:
    """The values of one rank as it recorded them, the newest of each step."""

    name: str
    qualifiers: dict[str, str]
    rank: Rank
    steps: list[int | None]
    values: list[float]


class SeriesPoints:
    """The points of ``NAMES``, and those that a training recorded itself.

    Cost: 12 bytes a point, and 250 for each step of a rank; as an object a point takes 600.
    """

    NAMES: Final = NAMES

    def __init__(self) -> None:
        self._points: dict[Head, tuple[array[int], array[float]]] = {}
        """Points of each series: the index of the moment, and the value."""
        self._ranks: dict[int, RankOfAttempt] = {}
        self._moments: dict[tuple[int, int], int] = {}

    def add(self, point: PointView) -> None:
        shown = [
            (key, str(value)) for key, value in point.attributes.items() if key not in (v.SCOPE_KEY, v.METRIC_NAME)
        ]
        process = id(point.resource)
        if process not in self._ranks:
            self._ranks[process] = text(point.resource, v.ATTEMPT_ID), rank_of(point.resource)
        self._put((point.name, point.unit, tuple(sorted(shown))), (process, point.time_ns), point.value)

    def _put(self, head: Head, moment: tuple[int, int], value: float) -> None:
        moments, values = self._points.setdefault(head, (array("I"), array("d")))
        moments.append(self._moments.setdefault(moment, len(self._moments)))
        values.append(value)

    def counts(self) -> dict[Head, int]:
        """Return how many points each series has."""
        return {head: len(values) for head, (_, values) in self._points.items()}

    def after(self, counts: Mapping[Head, int]) -> SeriesPoints:
        """Return the points that came after each series had so many."""
        newer, known = SeriesPoints(), list(self._moments)
        newer._ranks = self._ranks
        for head, (moments, values) in self._points.items():
            begin = counts.get(head, 0)
            for moment, value in zip(moments[begin:], values[begin:], strict=True):
                newer._put(head, known[moment], value)
        return newer

    def series(self, records: Iterable[StepRecord], making: Making) -> tuple[list[Series], list[Series]]:
        """Return the series of ``NAMES`` and the training's own, by step; the newest attempt of a step counts."""
        steps = self._steps(records)
        found = (
            making.make("curve", head[0], None, _series, head, steps, *points) for head, points in self._points.items()
        )
        made = [one for one in found if one is not None]
        ours = [one for one in made if one.name in NAMES]
        own = [one for one in made if one.name not in NAMES]
        ours.sort(key=lambda one: (NAMES.index(one.name), sorted(one.qualifiers.items())))
        return ours, sorted(own, key=lambda one: one.name)

    def of_ranks(self, records: Iterable[StepRecord], making: Making) -> list[RankSeries]:
        """Return by rank what was ever NaN or infinite, and the counts of answers that were."""
        chosen = {
            head: points
            for head, points in self._points.items()
            if head[0] in NAMES and (head[0] == v.REWARD_NONFINITE or not all(map(math.isfinite, points[1])))
        }
        if not chosen:
            return []
        steps, ranks = self._steps(records), [self._ranks[process][1] for process, _ in self._moments]
        found = []
        for head, (moments, values) in chosen.items():
            for rank in sorted({ranks[moment] for moment in moments}):
                own = [index for index, moment in enumerate(moments) if ranks[moment] == rank]
                points = array("I", (moments[index] for index in own)), array("d", (values[index] for index in own))
                found.append(making.make("curve", head[0], None, _rank_series, head, rank, steps, *points))
        return [one for one in found if one is not None]

    def _steps(self, records: Iterable[StepRecord]) -> Moments:
        """Return of each moment its attempt, its step and its time."""
        calendar = _Calendar(records)
        return [(self._ranks[process][0], *calendar.step(self._ranks[process], ns)) for process, ns in self._moments]


def _by_step(steps: Moments, moments: array[int], values: array[float]) -> dict[PlaceOfPoint, list[Value]]:
    found: defaultdict[PlaceOfPoint, list[Value]] = defaultdict(list)
    for moment, value in zip(moments, values, strict=True):
        attempt, step, time_ns = steps[moment]
        found[step].append((time_ns, attempt, value))
    return found


class _Calendar:
    """Finds the step of a point, which has the time of its end."""

    def __init__(self, records: Iterable[StepRecord]) -> None:
        self._steps: dict[RankOfAttempt, dict[int, list[StepRecord]]] = {}
        """By rank, and by how much its clock had been set."""
        self._last: dict[RankOfAttempt, StepRecord] = {}
        for record in sorted(records, key=lambda record: record.step.end_ns):
            rank = record.attempt, record.rank
            self._last.setdefault(rank, record)
            self._steps.setdefault(rank, {}).setdefault(record.clock_set_ns, []).append(record)

    def step(self, rank: RankOfAttempt, time_ns: int) -> tuple[PlaceOfPoint, int]:
        """Return the step of a point, and its time by the clock as it was before it was set.

        A clock that was set back shows a time twice: then it is the step that is nearer to that of the point before.
        """
        last = self._last.get(rank)
        if last is None:
            return ("", None, time_ns), time_ns
        found = [one for set_ns, steps in self._steps[rank].items() if (one := _at(steps, time_ns - set_ns))]
        if not found:
            return ("", None, time_ns - last.clock_set_ns), time_ns - last.clock_set_ns
        reached_ns = last.step.end_ns
        nearest = self._last[rank] = min(found, key=lambda one: abs(one.step.end_ns - reached_ns))
        return (nearest.step.loop, nearest.step.iteration, 0), time_ns - nearest.clock_set_ns


def _at(steps: Sequence[StepRecord], time_ns: int) -> StepRecord | None:
    index = bisect_left(steps, time_ns, key=lambda record: record.step.end_ns)
    return steps[index] if index < len(steps) and steps[index].step.begin_ns < time_ns else None


def is_own(point: PointView) -> bool:
    """Return whether the training recorded a point itself: a number of the user's, or a gauge without attributes."""
    if point.kind != "gauge" or point.name in v.METRICS:
        return False
    return not point.attributes or point.name.startswith(v.USER)


def _rank_series(head: Head, rank: Rank, steps: Moments, moments: array[int], values: array[float]) -> RankSeries:
    found = _by_step(steps, moments, values)
    rows = [(ones[-1][0], key[1], max(ones, key=itemgetter(1, 0))[2]) for key, ones in found.items()]
    rows.sort(key=itemgetter(0))
    return RankSeries(head[0], dict(head[2]), rank, [step for _, step, _ in rows], [value for _, _, value in rows])


def _series(head: Head, steps: Moments, moments: array[int], values: array[float]) -> Series:
    name, unit, qualifiers = head
    rows: list[tuple[int, int | None, float]] = []
    nonfinite = 0
    for key, ones in _by_step(steps, moments, values).items():
        if len(ones) == 1:  # most are: of thousands of names the rest would take seconds
            ((time_ns, _, number),) = ones
            is_finite = math.isfinite(number)
            nonfinite += not is_finite
            rows.append((time_ns, key[1], number if is_finite else math.nan))
            continue
        attempt = max(ones)[1]  # the newest
        newest = sorted(value for value in ones if value[1] == attempt)
        numbers = [number for _, _, number in newest]
        nonfinite += sum(not math.isfinite(number) for number in numbers)
        rows.append((newest[0][0], key[1], _combine(numbers, name)))
    rows.sort(key=lambda row: row[0])
    numbers = [number for _, _, number in rows]
    return Series(
        name=name,
        qualifiers=dict(qualifiers),
        unit=unit,
        **trend(numbers),
        nonfinite=nonfinite,
        steps=[step for _, step, _ in rows],
        values=[value if math.isfinite(value) else None for value in numbers],
    )


def _combine(numbers: Sequence[float], name: str) -> float:
    finite = [number for number in numbers if math.isfinite(number)]
    return EXTREMES.get(name, mean)(finite) if finite else math.nan


def last_loop(steps: Sequence[int | None]) -> int:
    """Return where the last training loop begins: each counts its steps anew."""
    begin = 0
    for index, (before, step) in enumerate(pairwise(steps), 1):
        if before is not None and step is not None and step < before:
            begin = index
    return begin


def of_last_loop(series: Series) -> Series:
    """Return what findings of learning read of a series: the values of the last training loop."""
    begin = last_loop(series.steps)
    if not begin:
        return series
    values = series.values[begin:]
    ends = trend([math.nan if value is None else value for value in values])
    return replace(
        series,
        steps=series.steps[begin:],
        values=values,
        first=ends["first"],
        last=ends["last"],
        mean=ends["mean"],
        low=ends["low"],
        high=ends["high"],
    )
