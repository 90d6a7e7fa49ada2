"""Rollout requests of a report: from histograms and counters of all processes, training and evaluation apart."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import Histogram
from otel_rl.journal.read import PointView
from otel_rl.report.data.report import StageRow
from otel_rl.report.data.requests import BadRequests, EnginePreemptions, Quantiles, RequestRow, Requests, Tail
from otel_rl.report.read.attributes import text
from otel_rl.report.read.last_points import LastPoints

NUMBERS: Final = {
    v.TTFT: "ttft_s",
    v.QUEUE_TIME: "queue_s",
    v.PREFILL_TIME: "prefill_s",
    v.TPOT: "tpot_s",
    v.REQUEST_DURATION: "duration_s",
    v.PROMPT_LENGTH: "prompt_tokens",
    v.OUTPUT_LENGTH: "response_tokens",
    v.CACHED_LENGTH: "cached_tokens",
}
"""Histograms, and the fields that they become."""
COUNTS: Final = {
    v.REQUESTS: "count",
    v.ABORTED: "aborted",
    v.TIMED_OUT: "timed_out",
    v.CLIPPED: "clipped",
    v.REQUEST_ERRORS: "errors",
}
NAMES: Final = frozenset(
    (
        *NUMBERS, *COUNTS, v.PREEMPTIONS, v.ENGINE_PREEMPTIONS, v.OMITTED, v.BAD_REQUESTS, v.TAIL, v.ROLLOUT_BUBBLE,
        v.ROLLOUT_WALL, v.KV_PEAK,
    )
)  # fmt: skip
"""The metrics that a report's requests are made of."""
PER_ROLLOUT: Final = (v.TAIL, v.ROLLOUT_BUBBLE, v.ROLLOUT_WALL)
MOST_OPEN: Final = 4096
"""Rollouts of which more may be said; what is said of one is written down at once."""

Kind = tuple[str, str, str, str]
"""Engine, model, submission, mode."""
Said = tuple[str, str]
"""A metric of a rollout, and the share of the slowest that it is about."""


class RequestPoints:
    """The points of the metrics in ``NAMES``: the last of each stream, and what is said of each rollout."""

    def __init__(self) -> None:
        """Begin without any point."""
        self._last = LastPoints()
        self._rollouts = _Rollouts()
        self._cache_peak: float | None = None

    def see(self, point: PointView) -> None:
        """Take a point in."""
        if point.kind != "gauge":
            self._last.see(point)
        if point.name in PER_ROLLOUT:
            self._rollouts.see(point)
        elif point.name == v.KV_PEAK:
            self._cache_peak = point.value if self._cache_peak is None else max(self._cache_peak, point.value)

    def rows(self, stages: Sequence[StageRow], spans: int) -> Requests:
        """Sum up the requests of a run.

        Args:
            stages: of the run, for the share of the rollout in the step.
            spans: so many of its requests are spans.
        """
        last = self._last.points()
        bad: Counter[str] = Counter()
        for point in last:
            if point.name == v.BAD_REQUESTS:
                bad[text(point.attributes, v.REASON)] += round(point.value)
        self._rollouts.close(0)
        rows = [_row(kind, histograms, counts) for kind, (histograms, counts) in sorted(_kinds(last).items())]
        return Requests(
            rows=rows,
            tails=_tails(self._rollouts, stages),
            bubble=self._rollouts.mean((v.ROLLOUT_BUBBLE, "")),
            kv_cache_peak=self._cache_peak,
            engine_preemptions=_told_by_engines(last, {row.engine for row in rows if row.preemptions is not None}),
            spans=spans,
            omitted=sum(round(point.value) for point in last if point.name == v.OMITTED),
            bad=[BadRequests(reason=reason, count=count) for reason, count in sorted(bad.items()) if count],
        )


class _Rollouts:
    """What is said of each rollout of the training that took any time. Cost: 16 bytes for each number."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], dict[Said, float]] = {}
        """By writer and time."""
        self._numbers: defaultdict[Said, tuple[array[float], array[float]]] = defaultdict(
            lambda: (array("d"), array("d"))
        )
        """Values, and the time of the rollout of each."""

    def see(self, point: PointView) -> None:
        if text(point.attributes, v.MODE) == "eval":
            return
        key = point.journal.identity.writer, point.time_ns
        if key not in self._open and len(self._open) >= MOST_OPEN:
            self.close(MOST_OPEN // 2)
        self._open.setdefault(key, {})[point.name, text(point.attributes, v.SLOWEST)] = point.value

    def close(self, most: int) -> None:
        """Leave no more than so many open."""
        for key in list(self._open)[: max(0, len(self._open) - most)]:
            said = self._open.pop(key)
            wall = said.get((v.ROLLOUT_WALL, ""))
            for name, value in said.items() if wall else ():
                values, walls = self._numbers[name]
                values.append(value)
                walls.append(wall or 0.0)

    def tails(self) -> set[str]:
        """Name the shares of the slowest of which something is known."""
        return {slowest for name, slowest in self._numbers if name == v.TAIL}

    def mean(self, name: Said) -> float | None:
        """Give the mean of a number, each with the time of its rollout as its weight."""
        values, walls = self._numbers[name]
        total = sum(walls)
        return sum(value * wall for value, wall in zip(values, walls, strict=True)) / total if total else None


def _kinds(points: Iterable[PointView]) -> dict[Kind, tuple[dict[str, Histogram], Counter[str]]]:
    kinds: dict[Kind, tuple[dict[str, Histogram], Counter[str]]] = defaultdict(lambda: ({}, Counter()))
    for point in points:
        keys = (v.PROVIDER, v.REQUEST_MODEL, v.SUBMISSION, v.MODE)
        engine, model, submission, mode = (text(point.attributes, key) for key in keys)
        if point.name in NUMBERS and point.count:
            histograms = kinds[engine, model, submission, mode][0]
            found = Histogram(point.boundaries, point.counts, point.min, point.max)
            before = histograms.get(point.name)
            histograms[point.name] = found if before is None else before.plus(found)
        elif point.name in COUNTS or point.name == v.PREEMPTIONS:
            kinds[engine, model, submission, mode][1][point.name] += round(point.value)
    return kinds


def _row(kind: Kind, histograms: dict[str, Histogram], counts: Counter[str]) -> RequestRow:
    engine, model, submission, mode = kind
    numbers: dict[str, Any] = {field: _quantiles(histograms.get(name)) for name, field in NUMBERS.items()}
    numbers.update({field: counts[name] for name, field in COUNTS.items()}, preemptions=counts.get(v.PREEMPTIONS))
    return RequestRow(engine=engine, model=model, is_bulk=submission == "bulk", is_evaluation=mode == "eval", **numbers)


def _told_by_engines(points: Iterable[PointView], told: Collection[str]) -> list[EnginePreemptions]:
    """Sum up the preemptions of the engines whose requests have not told theirs."""
    counts: Counter[str] = Counter()
    for point in points:
        engine = text(point.attributes, v.PROVIDER)
        if point.name == v.ENGINE_PREEMPTIONS and engine not in told:
            counts[engine] += round(point.value)
    return [EnginePreemptions(engine=engine, count=count) for engine, count in sorted(counts.items())]


def _quantiles(histogram: Histogram | None) -> Quantiles | None:
    if histogram is None:
        return None
    return Quantiles(
        count=histogram.count, median=histogram.quantile(0.5), p99=histogram.quantile(0.99), longest=histogram.high
    )


def _tails(rollouts: _Rollouts, stages: Sequence[StageRow]) -> list[Tail]:
    rollout_share = sum(row.share for row in stages if row.inside is None and row.stage == v.SAMPLE)
    tails = []
    for slowest in sorted(rollouts.tails(), key=float):
        share = rollouts.mean((v.TAIL, slowest))
        if share is not None:
            of_step = share * rollout_share if rollout_share else None
            tails.append(Tail(slowest=float(slowest), share=share, step_share=of_step))
    return tails
