"""The numbers of every step: reward, loss and what tells a stable run from an unstable one."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.trend import mean, sparkline, trend
from otel_rl.journal.read import PointView
from otel_rl.report.data.report import Rank, Report, Series
from otel_rl.report.format import count, number
from otel_rl.report.read.collect import StepRecord
from otel_rl.report.read.span_attributes import rank_of, text
from otel_rl.report.section import Block, Column, Line, Picture, Section, Table, more

NAMES: Final = (
    v.REWARD_SCORE, v.REWARD_STD, v.FUNCTION_SCORE, v.FUNCTION_STD, v.EVAL_REWARD, v.REWARD_ZERO_STD, v.LOSS,
    v.LOSS_TERM, v.GRAD_NORM, v.KL_REFERENCE, v.KL_POLICY, v.ENTROPY, v.CLIP_FRACTION, v.CLIP_SIDE_FRACTION,
    v.RESPONSE_LENGTH, v.RESPONSE_MIN, v.RESPONSE_MAX, v.RESPONSE_CLIPPED, v.LEARNING_RATE,
)  # fmt: skip
"""The series of a report in their order."""
EXTREMES: Final = {v.RESPONSE_MIN: min, v.RESPONSE_MAX: max}
"""What is no mean over ranks."""

MOST_MOMENTS: Final = 4096
"""Times of a process that are known again; one that comes back later is kept once more."""
TITLES: Final = {
    v.REWARD_SCORE: "reward",
    v.FUNCTION_SCORE: "reward",
    v.EVAL_REWARD: "evaluation reward",
    v.REWARD_ZERO_STD: "groups of equal reward",
    v.LOSS: "loss",
    v.LOSS_TERM: "loss",
    v.GRAD_NORM: "gradient norm",
    v.KL_REFERENCE: "KL to reference",
    v.KL_POLICY: "KL to old policy",
    v.ENTROPY: "entropy",
    v.CLIP_FRACTION: "clip fraction",
    v.RESPONSE_LENGTH: "response length",
    v.RESPONSE_CLIPPED: "responses cut",
    v.LEARNING_RATE: "learning rate",
}
"""The series that are shown, as people call them."""
LONGEST_LINE: Final = 48
MOST_ROWS: Final = 40
"""At most so many series are shown; a framework may have a reward for each task."""
OWN_ROWS: Final = 12
"""At most so many of the training's own numbers are shown; JSON has all."""

Qualifiers = tuple[tuple[str, str], ...]
Head = tuple[str, str, Qualifiers]
"""Name, unit and attributes of a series."""
StepKey = tuple[str, int | None, int]
"""Loop and number of a step; a point outside of any step is told apart by its time."""
Value = tuple[int, str, float]
"""Time, attempt, number."""
Place = tuple[str, Rank]
"""Attempt and rank."""


class SeriesPoints:
    """The points that series are made of: those of ``NAMES``, and what a training recorded by itself.

    Cost: 12 bytes a point, and 12 for each step of a rank; as an object a point takes 600.
    """

    NAMES: Final = NAMES

    def __init__(self) -> None:
        self._points: dict[Head, tuple[array[int], array[float]]] = {}
        """Of each series: the moment of each point, and its value."""
        self._heads: dict[tuple[str, ...], tuple[array[int], array[float]]] = {}
        """The same by name, unit and attributes as they come."""
        self._times = array("q")
        self._places = array("I")
        """Of each moment, that is a time of a process: when, and the number of its place."""
        self._numbers: dict[Place, int] = {}
        self._recent: dict[int, tuple[int, dict[int, int]]] = {}
        """By resource, of which a process has one: the number of its place, and its last moments by their time."""

    def add(self, point: PointView) -> None:
        """Take a point in; a histogram has no value."""
        key = (point.name, point.unit, *point.attributes, *map(str, point.attributes.values()))
        found = self._heads.get(key)
        if found is None:
            head = _name(point), point.unit, _qualifiers(point)
            found = self._heads[key] = self._points.setdefault(head, (array("I"), array("d")))
        moments, values = found
        moments.append(self._moment(point))
        values.append(point.value)

    def series(self, records: Iterable[StepRecord]) -> tuple[list[Series], list[Series]]:
        """Line the points of all ranks up by step; of a step that a restart repeated the newest attempt counts.

        Returns:
            Those of ``NAMES``, and the training's own, of which several values in one step become their mean.
        """
        places = list(self._numbers)
        attempts = [attempt for attempt, _ in places]
        numbers, steps = self._steps(_Calendar(records), places)
        made = [
            _series(head, ((steps[number], values) for number, values in self._rows(numbers, attempts, *points)))
            for head, points in self._points.items()
        ]
        ours = [one for one in made if one.name in NAMES]
        own = [one for one in made if one.name not in NAMES]
        ours.sort(key=lambda one: (NAMES.index(one.name), sorted(one.qualifiers.items())))
        return ours, sorted(own, key=lambda one: one.name)

    def _moment(self, point: PointView) -> int:
        number, recent = self._recent.get(id(point.resource)) or self._process(point)
        moment = recent.get(point.time_ns)
        if moment is None:
            if len(recent) >= MOST_MOMENTS:
                recent.clear()
            moment = recent[point.time_ns] = len(self._times)
            self._times.append(point.time_ns)
            self._places.append(number)
        return moment

    def _process(self, point: PointView) -> tuple[int, dict[int, int]]:
        place = text(point.resource, v.ATTEMPT_ID), rank_of(point.resource)
        number = self._numbers.setdefault(place, len(self._numbers))
        return self._recent.setdefault(id(point.resource), (number, {}))

    def _steps(self, calendar: _Calendar, places: Sequence[Place]) -> tuple[array[int], list[StepKey]]:
        """Give the number of each moment's step, and the steps by their numbers."""
        known: dict[StepKey, int] = {}
        numbers = array("I")
        for moment, (time_ns, place) in enumerate(zip(self._times, self._places, strict=True)):
            step, self._times[moment] = calendar.step(places[place], time_ns)
            numbers.append(known.setdefault(step, len(known)))
        return numbers, list(known)

    def _rows(
        self, numbers: array[int], attempts: Sequence[str], moments: array[int], values: array[float]
    ) -> Iterator[tuple[int, list[Value]]]:
        """Give the steps of a series by their numbers, in the order in which they were seen, each with its values."""
        seen: dict[int, int] = {}
        order = array("I", (seen.setdefault(numbers[moment], len(seen)) for moment in moments))
        for _, group in groupby(sorted(range(len(order)), key=order.__getitem__), key=order.__getitem__):
            points = [(moments[index], values[index]) for index in group]
            of_step = [(self._times[moment], attempts[self._places[moment]], value) for moment, value in points]
            yield numbers[points[0][0]], of_step


class _Calendar:
    """Says in which step of its rank a point lies: points are stamped at the end of their step."""

    def __init__(self, records: Iterable[StepRecord]) -> None:
        steps: defaultdict[Place, list[StepRecord]] = defaultdict(list)
        for record in records:
            steps[record.attempt, record.rank].append(record)
        for of_rank in steps.values():
            of_rank.sort(key=lambda record: record.step.end_ns)
        self._steps = {
            place: [(set_ns, list(group)) for set_ns, group in groupby(of_rank, key=lambda one: one.clock_set_ns)]
            for place, of_rank in steps.items()
        }
        """Of each rank the steps between which its clock was not set, and by how much it had been."""
        self._last = {place: of_rank[0] for place, of_rank in steps.items()}
        """In which step the point before lay."""

    def step(self, place: Place, time_ns: int) -> tuple[StepKey, int]:
        """Give the step, and the time by the clock that nobody set; points come about as they were recorded.

        A clock that was set back says a time twice: then it is the step that is nearer to that of the point before.
        """
        last = self._last.get(place)
        if last is None:
            return ("", None, time_ns), time_ns
        found = [one for set_ns, steps in self._steps[place] if (one := _at(steps, time_ns - set_ns)) is not None]
        if not found:
            return ("", None, time_ns - last.clock_set_ns), time_ns - last.clock_set_ns
        reached_ns = last.step.end_ns
        nearest = self._last[place] = min(found, key=lambda one: abs(one.step.end_ns - reached_ns))
        return (nearest.step.loop, nearest.step.iteration, 0), time_ns - nearest.clock_set_ns


def _at(steps: Sequence[StepRecord], time_ns: int) -> StepRecord | None:
    index = bisect_left(steps, time_ns, key=lambda record: record.step.end_ns)
    return steps[index] if index < len(steps) and steps[index].step.begin_ns < time_ns else None


def is_own(point: PointView) -> bool:
    """Whether the training recorded a point by itself: a number of the user's, another gauge without attributes."""
    if point.kind != "gauge" or point.name in v.METRICS:
        return False
    return not point.attributes or point.name.startswith(v.USER)


def _name(point: PointView) -> str:
    """Return the name of a series, of a user's number as the user wrote it."""
    return text(point.attributes, v.METRIC_NAME) or point.name.removeprefix(v.USER)


def _qualifiers(point: PointView) -> Qualifiers:
    hidden = (v.SCOPE_KEY, v.METRIC_NAME)
    return tuple(sorted((key, str(value)) for key, value in point.attributes.items() if key not in hidden))


def _series(head: Head, steps: Iterable[tuple[StepKey, list[Value]]]) -> Series:
    name, unit, qualifiers = head
    rows: list[tuple[int, int | None, float]] = []
    nonfinite = 0
    for key, values in steps:
        newest = _newest(values)
        numbers = [number for _, _, number in newest]
        nonfinite += sum(not math.isfinite(number) for number in numbers)
        rows.append((newest[0][0], key[1], _combine(numbers, name)))
    rows.sort(key=lambda row: row[0])
    numbers = [number for _, _, number in rows]
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
        nonfinite=nonfinite,
        steps=[step for _, step, _ in rows],
        values=[value if math.isfinite(value) else None for value in numbers],
    )


def _newest(values: list[Value]) -> list[Value]:
    """Keep the values of the attempt that reported last, in order of time."""
    attempt = max(values)[1]
    return sorted(value for value in values if value[1] == attempt)


def _combine(numbers: Sequence[float], name: str) -> float:
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return math.nan
    return EXTREMES.get(name, mean)(finite)


def _series_blocks(report: Report) -> list[Block]:
    rows = [series for series in report.series if _is_shown(series)]
    by_parts = sorted(rows, key=lambda one: one.name == v.FUNCTION_SCORE)[:MOST_ROWS]  # there may be many functions
    table = _table("over the steps", "first", "last", "min", "max")
    for one in sorted(by_parts, key=lambda one: (list(TITLES).index(one.name), len(one.qualifiers))):
        _add(table, _title(one), (one.first, one.last, one.low, one.high), one)
    return [table, *more(len(rows) - len(by_parts))] if rows else []


def _number_blocks(report: Report) -> list[Block]:
    """Show the training's own numbers, of many those with most values."""
    most = sorted(report.numbers, key=lambda one: -len(one.values))[:OWN_ROWS]
    table = _table("your numbers", "last", "mean", "min", "max")
    for one in sorted(most, key=lambda one: one.name):
        _add(table, one.name, (one.last, one.mean, one.low, one.high), one)
    return [table, *more(len(report.numbers) - len(most))] if most else []


def _table(name: str, *heads: str) -> Table:
    line, bad = Column("", "picture", LONGEST_LINE), Column("", "fact")
    return Table([Column(name, "name"), *map(Column, heads), line, bad])


def _add(table: Table, name: str, numbers: Iterable[float | None], series: Series) -> None:
    values = [math.nan if value is None else value for value in series.values]
    bad = f"{count(series.nonfinite)} NaN/Inf" if series.nonfinite else ""
    table.add(name, *map(number, numbers), Picture(partial(sparkline, values)), Line(bad, "warning") if bad else "")


def _is_shown(series: Series) -> bool:
    """Leave to JSON what has no title, and of evaluations all but their reward."""
    return series.name in TITLES and (series.qualifiers.get(v.MODE) != "eval" or series.name == v.EVAL_REWARD)


def _title(series: Series) -> str:
    rest = [value for key, value in series.qualifiers.items() if key != v.MODE]
    return f"  {TITLES[series.name]} {' '.join(rest)}" if rest else TITLES[series.name]


SERIES: Final = Section(title="Over the steps", data={"series": lambda source: source.series[0]}, blocks=_series_blocks)
NUMBERS: Final = Section(title="Your numbers", data={"numbers": lambda source: source.series[1]}, blocks=_number_blocks)
