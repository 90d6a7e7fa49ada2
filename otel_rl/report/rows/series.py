"""Numbers over the steps."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import mean, trend
from otel_rl.journal.read import PointView
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Series
from otel_rl.report.findings.unmade import Making
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import text
from otel_rl.tables.forest import NONE, combinations, inverse

if TYPE_CHECKING:
    from otel_rl.tables.forest import Ints

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
RankOfAttempt = tuple[str, Rank]


class PlacedMoments(NamedTuple):
    """When points were recorded; arrays of moments."""

    step: Ints
    """The place of its step in ``steps``; a moment outside of steps is with others of the same time."""
    steps: list[int | None]
    time: Ints
    """By the clock as it was before it was set, ns."""
    attempt: Ints
    """Its place among the attempts by name."""
    turn: Ints
    """Its turn in order of steps, in each of time and attempt."""


class LinedUp(NamedTuple):
    """The points of a series step by step, of each the newest attempt's, in order of time."""

    rows: Ints
    ends: list[int]
    """Where the points of each step begin in ``rows``, and where the last end."""
    steps: list[int | None]


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

    def series(self, records: Sequence[StepRecord], making: Making) -> tuple[list[Series], list[Series]]:
        """Return the series of ``NAMES`` and the training's own, by step; the newest attempt of a step counts."""
        moments, known = self._place(records), dict[bytes, LinedUp]()
        found = (
            making.make("curve", head[0], None, _series, head, moments, known, *map(np.array, points))
            for head, points in self._points.items()
        )
        made = [one for one in found if one is not None]
        ours = [one for one in made if one.name in NAMES]
        own = [one for one in made if one.name not in NAMES]
        ours.sort(key=lambda one: (NAMES.index(one.name), sorted(one.qualifiers.items())))
        return ours, sorted(own, key=lambda one: one.name)

    def of_ranks(self, records: Sequence[StepRecord], making: Making) -> list[RankSeries]:
        """Return by rank what was ever NaN or infinite, and the counts of answers that were."""
        chosen = {
            head: (np.array(own), np.array(values))
            for head, (own, values) in self._points.items()
            if head[0] in NAMES and (head[0] == v.REWARD_NONFINITE or not np.isfinite(values).all())
        }
        if not chosen:
            return []
        moments, ranks = self._place(records), sorted({rank for _, rank in self._ranks.values()})
        numbers = {process: ranks.index(rank) for process, (_, rank) in self._ranks.items()}
        of_rank = np.array([numbers[process] for process, _ in self._moments], np.int64)
        found = []
        for head, (own, values) in chosen.items():
            for number in np.unique(of_rank[own]).tolist():
                kept = of_rank[own] == number
                points = own[kept], values[kept]
                found.append(making.make("curve", head[0], None, _rank_series, head, ranks[number], moments, *points))
        return [one for one in found if one is not None]

    def _place(self, records: Sequence[StepRecord]) -> PlacedMoments:
        """Find the step of each moment."""
        ranks: dict[RankOfAttempt, int] = {}
        of_process = {process: ranks.setdefault(rank, len(ranks)) for process, rank in self._ranks.items()}
        rank = np.array([of_process[process] for process, _ in self._moments], np.int64)
        time = np.array([time_ns for _, time_ns in self._moments], np.uint64).astype(np.int64)
        row, time = _find(records, ranks, rank, time)
        loops: dict[str, int] = {}
        loop = np.array([loops.setdefault(record.step.loop, len(loops)) for record in records], np.int64)
        iteration = np.array([record.step.iteration for record in records], np.int64)
        first, number = combinations(loop, iteration)
        outside, step = np.unique(time, return_inverse=True)
        step += len(first)
        step[row != NONE] = number[row[row != NONE]]
        names = sorted({attempt for attempt, _ in ranks})
        attempt = np.array([names.index(name) for name, _ in ranks], np.int64)[rank]
        steps = [*iteration[first].tolist(), *[None] * len(outside)]
        return PlacedMoments(step, steps, time, attempt, inverse(np.lexsort((attempt, time, step))))


def _find(
    records: Sequence[StepRecord], ranks: Mapping[RankOfAttempt, int], rank: Ints, time: Ints
) -> tuple[Ints, Ints]:
    """Find the steps of points, which have the times of their ends.

    Args:
        records: all steps.
        ranks: the number of each rank.
        rank: of each point.
        time: of each point, ns.

    Returns:
        The place of each point's record, or ``NONE``, and its time by the clock as it was before it was set.
    """
    begin = np.array([record.step.begin_ns for record in records], np.int64)
    end = np.array([record.step.end_ns for record in records], np.int64)
    clock = np.array([record.clock_set_ns for record in records], np.int64)
    of = np.array([ranks.get((record.attempt, record.rank), NONE) for record in records], np.int64)
    by_end, by_rank = np.lexsort((end, of)), np.argsort(rank, kind="stable")
    numbers = np.arange(len(ranks) + 1)
    steps, points = (np.searchsorted(one, numbers).tolist() for one in (of[by_end], rank[by_rank]))
    row, time = np.full(len(time), NONE), time.copy()
    for number in range(len(ranks)):
        own, at = by_end[steps[number] : steps[number + 1]], by_rank[points[number] : points[number + 1]]
        if len(own):
            row[at], set_ns = _in_steps(own, begin, end, clock, time[at])
            time[at] -= set_ns
    return row, time


def _in_steps(steps: Ints, begin: Ints, end: Ints, clock: Ints, time: Ints) -> tuple[Ints, Ints]:
    """Find the steps of the points of one rank, and by how much the clock had been set then.

    A clock that was set back shows a time twice: then it is the step that is nearer to that of the point before.
    """
    clocks, found = list(dict.fromkeys(clock[steps].tolist())), []
    for set_ns in clocks:
        of_clock = steps[clock[steps] == set_ns]
        at = np.searchsorted(end[of_clock], time - set_ns)
        step = of_clock[np.minimum(at, len(of_clock) - 1)]
        found.append(np.where((at < len(of_clock)) & (begin[step] < time - set_ns), step, NONE))
    if len(clocks) == 1:
        return found[0], np.full(len(time), clocks[0])
    last, rows = int(steps[0]), []
    for candidates in np.array(found).T.tolist():
        known, reached_ns = [one for one in candidates if one != NONE], end[last]
        last = min(known, key=lambda one: abs(end[one] - reached_ns), default=last)
        rows.append((last if known else NONE, clock[last]))
    row, set_ns = np.array(rows, np.int64).reshape(-1, 2).T
    return row, set_ns


def is_own(point: PointView) -> bool:
    """Return whether the training recorded a point itself: a number of the user's, or a gauge without attributes."""
    if point.kind != "gauge" or point.name in v.METRICS:
        return False
    return not point.attributes or point.name.startswith(v.USER)


def _rank_series(head: Head, rank: Rank, moments: PlacedMoments, own: Ints, values: Ints) -> RankSeries:
    order = np.lexsort((-np.arange(len(own)), moments.time[own], moments.attempt[own]))
    newest: dict[int, float] = dict(zip(moments.step[own][order].tolist(), values[order].tolist(), strict=True))
    last_ns: dict[int, int] = dict(zip(moments.step[own].tolist(), moments.time[own].tolist(), strict=True))
    steps = sorted(last_ns, key=lambda step: last_ns[step])
    return RankSeries(
        head[0], dict(head[2]), rank, [moments.steps[step] for step in steps], [newest[step] for step in steps]
    )


def _series(head: Head, moments: PlacedMoments, known: dict[bytes, LinedUp], own: Ints, values: Ints) -> Series:
    """Make a series; most have the moments of another one, so that few have to be lined up."""
    name, unit, qualifiers = head
    key = own.tobytes()
    rows, ends, steps = known.get(key) or known.setdefault(key, _line_up(moments, own))
    values = values[rows]
    listed, is_finite = values.tolist(), np.isfinite(values)
    are_all = bool(is_finite.all())
    numbers = [_combine(listed[begin:end], name, are_finite=are_all) for begin, end in pairwise(ends)]
    return Series(
        name=name,
        qualifiers=dict(qualifiers),
        unit=unit,
        **trend(numbers),
        nonfinite=int(np.sum(~is_finite)),
        steps=list(steps),
        values=[value if math.isfinite(value) else None for value in numbers],
    )


def _line_up(moments: PlacedMoments, own: Ints) -> LinedUp:
    order = np.argsort(moments.turn[own], kind="stable")
    step, time, attempt = (column[own[order]] for column in (moments.step, moments.time, moments.attempt))
    is_last = np.append(step[1:] != step[:-1], True)
    of_step = np.cumsum(is_last) - is_last
    is_newest = attempt == attempt[is_last][of_step]
    first = np.minimum.reduceat(order, np.flatnonzero(np.append(True, is_last[:-1])))
    rows, time, of_step = order[is_newest], time[is_newest], of_step[is_newest]
    counts = np.bincount(of_step)
    turns = np.lexsort((first, time[np.cumsum(counts) - counts]))
    rows = rows[np.argsort(inverse(turns)[of_step], kind="stable")]
    steps = step[is_last][turns].tolist()
    return LinedUp(rows, [0, *np.cumsum(counts[turns]).tolist()], [moments.steps[one] for one in steps])


def _combine(numbers: Sequence[float], name: str, *, are_finite: bool) -> float:
    finite = numbers if are_finite else [number for number in numbers if math.isfinite(number)]
    if len(finite) == 1:  # most are: of thousands of names the rest would take seconds
        return finite[0]
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
