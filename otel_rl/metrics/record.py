"""Metrics: hot threads queue what happened, the flusher folds it into cumulative points.

Nothing here calls an SDK instrument: a histogram record costs 5 us there and 0.5 us here, and the SDK drops NaN and
negative values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import repeat
from math import inf, isfinite
from operator import add
from typing import Any, Literal

from otel_rl import vocabulary
from otel_rl.analysis.buckets import BOUNDS
from otel_rl.guard import guard, say
from otel_rl.metrics.naming import names, refuse, series_of
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Count, Distribution, Exemplar, Labels, MetricPoints, Number, Point
from otel_rl.trace.values import is_on_host

MAX_SERIES = 2000
"""Attribute sets that one metric may have; what comes after is counted as dropped (the SDK's own limit)."""
SETTABLE = frozenset(vocabulary.SETTABLE)
MOST_REFUSED = 100
"""Names that are refused with a line in the log each."""
ALIKE = 0.85
"""Similarity from which on a name is likely to be a misspelled one that a loop may set."""
LARGEST = 1 << 1023


def count(name: str, value: int | float, *labels: tuple[str, str]) -> None:
    state.add(Count(name, value, labels))


def gauge(name: str, value: int | float, *labels: tuple[str, str], time_ns: int = 0) -> None:
    """Record one point of a gauge, now or at ``time_ns``; NaN and infinity are kept. Cost: 0.5 us."""
    state.add(Point(name, value, time_ns or state.now(), labels))


def record(name: str, value: Any) -> None:
    """Record a number of your own: one gauge point, attached to this rank and placed in the current step by its time.

    Args:
        name: the metric's name, as you want to find it.
        value: a number; NaN and infinity are kept. A tensor on the host counts as its number. What is no number, and a
            tensor on a device (reading it would wait for the device), is logged once and counted, not recorded.

    The metric is ``user.<name>``, so that no number takes the series of another one. Some names of ours may be set by a
    loop of your own and stay as they are: ``rl.reward.score``, ``rl.train.loss`` and those beside them in
    docs/catalogue.md. Every other name below ``rl.``, ``gen_ai.``, ``hw.``, ``system.``, ``process.`` and ``otel_rl.``
    is logged once and counted, not recorded.

    Inside a compiled region it does nothing.

    Emits: ``user.<name>`` (gauge, without a unit). Cost: 1.2 us.
    """
    if not state.on or hooking.is_compiling():
        return
    with guard("record a number"):
        number = as_number(value)
        if number is None or not name:
            refuse(
                "not_a_number", "otel_rl.record(%r, ...) takes a name and a number, not %s", name, type(value).__name__
            )
        elif (name := str(name)) in SETTABLE:
            gauge(name, number)
        elif name.startswith(vocabulary.NAMESPACES):
            _refuse_name(name)
        else:
            series = series_of(name, vocabulary.USER)
            if series is not None:
                state.add(Point(series[0], number, state.now(), series[1]))


def _refuse_name(name: str) -> None:
    """Count a number under a name of ours, and say so the first time that the name comes."""
    state.drop("metrics", "name_taken")
    if name not in names.refused and len(names.refused) < MOST_REFUSED:
        names.refused.add(name)
        why = "is measured by otel_rl itself" if _is_ours(name) else "begins as names of otel_rl and OpenTelemetry do"
        near = get_close_matches(name, SETTABLE, 1, ALIKE)
        say(
            "otel_rl.record(%r, ...) is not recorded: the name %s. Record it under another name, such as %r%s",
            *(name, why, f"my.{name.partition('.')[2]}", f"; did you mean {near[0]!r}?" if near else ""),
        )


def _is_ours(name: str) -> bool:
    return name in vocabulary.METRICS or any(name == stage.duration for stage in vocabulary.STAGES.values())


def as_number(value: Any) -> int | float | None:
    """Turn a number, a numpy scalar or a one-element host tensor into a Python number; None if it is none of them."""
    if not isinstance(value, (int, float)):
        if not (is_on_host(value) and hasattr(value, "item")):
            return None
        try:
            value = value.item()
        except (ValueError, RuntimeError):  # more than one element
            return None
    if isinstance(value, float):
        return float(value)
    return int(value) if isinstance(value, int) and abs(value) < LARGEST else None


@dataclass
class _Histogram:
    counts: list[int]
    sum: float = 0.0
    min: float = inf
    max: float = -inf
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """Since the last point, the latest between two boundaries of the vocabulary."""


@dataclass
class _Metric:
    row: vocabulary.Metric
    bounds: Sequence[float]
    series: dict[Labels, Any] = field(default_factory=dict)
    changed: set[Labels] = field(default_factory=set)


class Fold:
    """Cumulative counters and histograms and gauge points of this process; used by the flusher only."""

    def __init__(self, start_ns: int, *, is_exponential: bool = True) -> None:
        self.start_ns = start_ns
        self.is_exponential = is_exponential
        self.overflow = 0
        """Values whose metric had too many series already."""
        self._metrics: dict[str, _Metric] = {}
        self._points: defaultdict[str, list[Point]] = defaultdict(list)
        self._gauges: defaultdict[str, set[Labels]] = defaultdict(set)
        """The attribute sets that each gauge has had."""

    @property
    def num_points(self) -> int:
        return sum(map(len, self._points.values()))

    @property
    def waiting(self) -> Mapping[str, list[Point]]:
        """Return the points of gauges that wait to be drained, by name."""
        return self._points

    @property
    def is_pending(self) -> bool:
        return bool(self._points) or any(metric.changed for metric in self._metrics.values())

    def count(self, name: str, value: int | float, labels: Labels = ()) -> None:
        metric = self._metrics.get(name) or self._metric(name, "counter")
        before = metric.series.get(labels)
        if before is not None:
            metric.series[labels] = before + value
            metric.changed.add(labels)
        elif self._admit(metric, labels):
            metric.series[labels] = value

    def total(self, name: str, value: int | float, labels: Labels = ()) -> None:
        """Set a counter that is counted elsewhere to its new total."""
        metric = self._metric(name, "counter")
        if metric.series.get(labels) != value and self._admit(metric, labels):
            metric.series[labels] = value

    def durations(self, name: str, seconds: Sequence[float], labels: Labels = ()) -> bool:
        """Add values to a histogram, one at least; return whether it takes this set of attributes."""
        metric = self._metrics.get(name) or self._metric(name, "histogram")
        histogram = self._histogram(metric, labels, len(seconds))
        if histogram is not None:
            counts = histogram.counts
            for place in map(bisect_left, repeat(metric.bounds), seconds):
                counts[place] += 1
            low, high = min(seconds), max(seconds)
            histogram.sum = sum(seconds, histogram.sum)
            histogram.min, histogram.max = min(histogram.min, low), max(histogram.max, high)
        return histogram is not None

    def merge(self, name: str, labels: Labels, counts: Sequence[int], summary: tuple[float, float, float]) -> None:
        histogram = self._histogram(self._metrics.get(name) or self._metric(name, "histogram"), labels, sum(counts))
        if histogram is not None:
            total, low, high = summary
            histogram.counts = list(map(add, histogram.counts, counts))
            histogram.sum += total
            histogram.min, histogram.max = min(histogram.min, low), max(histogram.max, high)

    def exemplar(self, name: str, labels: Labels, exemplar: Exemplar) -> None:
        """Let a histogram's next point name the span of one of its values; between two boundaries the last counts."""
        metric = self._metrics.get(name) or self._metric(name, "histogram")
        histogram = metric.series.get(labels)
        if histogram is not None:
            histogram.exemplars[bisect_left(metric.row.boundaries, exemplar.value)] = exemplar
            metric.changed.add(labels)

    def point(self, point: Point) -> None:
        """Keep one gauge point; a value that is not finite is counted besides."""
        name, labels = point.name, point.labels
        known = self._gauges[name]
        if labels not in known:
            if len(known) >= MAX_SERIES:
                self._overflow(name)
                return
            known.add(labels)
        if not isfinite(point.value):
            self.count(vocabulary.NONFINITE, 1, ((vocabulary.METRIC_NAME, name),))
        self._points[name].append(point)

    def add(self, records: Iterable[Any]) -> Iterator[Any]:
        """Add the counts and points among records; yield what is neither.

        A trainer's step has 50 points: a call of a function for each would cost as much as all else done with them.
        """
        points, gauges = self._points, self._gauges
        for record in records:
            kind = type(record)
            if kind is Point:
                if isfinite(record.value) and record.labels in gauges[record.name]:
                    points[record.name].append(record)
                else:
                    self.point(record)
            elif kind is Count:
                self.count(*record)
            else:
                yield record

    def drain(self, now_ns: int) -> list[MetricPoints]:
        """Return what has changed since the last call, as points at ``now_ns`` (gauges: at their own times)."""
        drained = self.peek(now_ns)
        self._points = defaultdict(list)
        for metric in self._metrics.values():
            for labels in metric.changed:
                value = metric.series[labels]
                if isinstance(value, _Histogram):
                    value.exemplars.clear()
            metric.changed = set()
        return drained

    def peek(self, now_ns: int) -> list[MetricPoints]:
        """Return what ``take`` would, and leave it waiting."""
        seen = []
        for name, points in self._points.items():
            row = vocabulary.METRICS.get(name) or vocabulary.Metric(name, "gauge", "", "")
            seen.append(MetricPoints(name, "gauge", row.unit, row.meaning, points))
        for metric in self._metrics.values():
            if metric.changed:
                seen.append(self._points_of(metric, metric.changed, now_ns))
        return seen

    def _points_of(self, metric: _Metric, changed: Iterable[Labels], now_ns: int) -> MetricPoints:
        row = metric.row
        numbers: list[Number] = []
        distributions: list[Distribution] = []
        for labels in changed:
            value = metric.series[labels]
            if isinstance(value, _Histogram):
                counts, exemplars = list(value.counts), sorted(value.exemplars.values())  # by time, as Prometheus asks
                distributions.append(
                    Distribution(now_ns, counts, value.sum, value.min, value.max, dict(labels), exemplars)
                )
            else:
                numbers.append(Number(now_ns, value, dict(labels)))
        kind = "exponential" if metric.bounds is BOUNDS else row.kind
        return MetricPoints(
            row.name, kind, row.unit, row.meaning, distributions or numbers, self.start_ns, metric.bounds
        )

    def _metric(self, name: str, kind: Literal["counter", "histogram"]) -> _Metric:
        metric = self._metrics.get(name)
        if metric is None:
            row = vocabulary.METRICS.get(name) or _duration_row(name, kind)
            is_exponential = self.is_exponential and row.kind == "histogram" and not row.is_signed
            bounds = BOUNDS if is_exponential else row.boundaries
            metric = self._metrics[name] = _Metric(row, bounds)
        return metric

    def _histogram(self, metric: _Metric, labels: Labels, values: int) -> _Histogram | None:
        histogram: _Histogram | None = metric.series.get(labels)
        if not self._admit(metric, labels, values):
            return None
        if histogram is None:
            histogram = metric.series[labels] = _Histogram([0] * (len(metric.bounds) + 1))
        return histogram

    def _admit(self, metric: _Metric, labels: Labels, values: int = 1) -> bool:
        if labels not in metric.series and len(metric.series) >= MAX_SERIES:
            self._overflow(metric.row.name, values)
            return False
        metric.changed.add(labels)
        return True

    def _overflow(self, name: str, values: int = 1) -> None:
        """Count values of a metric that has too many series already, and say so the first time."""
        if not self.overflow:
            say("otel_rl: %s has %s sets of attributes already; others are left out", name, f"{MAX_SERIES:,}")
        self.overflow += values


def _duration_row(name: str, kind: Literal["counter", "histogram"]) -> vocabulary.Metric:
    stage = next((row for row in vocabulary.STAGES.values() if row.duration == name), None)
    meaning = f"duration of {stage.name}: {stage.meaning}" if stage else ""
    boundaries = vocabulary.DURATION_BOUNDARIES if kind == "histogram" else ()
    return vocabulary.Metric(name, kind, "s" if kind == "histogram" else "", meaning, boundaries=boundaries)


def labels_of(attributes: dict[str, Any], keys: Iterable[str]) -> Labels:
    labels: Labels = ()
    for key in keys:
        if key in attributes:
            value = attributes[key]
            if isinstance(value, (str, bool, int, float)):  # a user may have put a list there
                labels = (*labels, (key, value))
    return labels
