"""Rollout requests: how many, how long, and how they ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import Histogram, exact_quantile
from otel_rl.journal.read import PointView
from otel_rl.report.data.details import BadRequests, EnginePreemptions, Quantiles, RequestRow, Requests, RequestTail
from otel_rl.report.read.last_points import LastPoints
from otel_rl.report.read.request_spans import RequestKind, RequestSpans, kind_of
from otel_rl.runs.format import count, seconds
from otel_rl.runs.spans import text

NUMBERS: Final[Mapping[str, tuple[str, str, Callable[[float], str]]]] = {
    v.TTFT: ("ttft_s", "TTFT", seconds),
    v.QUEUE_TIME: ("queue_s", "queue", seconds),
    v.PREFILL_TIME: ("prefill_s", "prefill", seconds),
    v.TPOT: ("tpot_s", "TPOT", seconds),
    v.REQUEST_DURATION: ("duration_s", "duration", seconds),
    v.PROMPT_LENGTH: ("prompt_tokens", "prompt tokens", count),
    v.OUTPUT_LENGTH: ("response_tokens", "response tokens", count),
    v.CACHED_LENGTH: ("cached_tokens", "cached tokens", count),
}
"""Histograms, the fields that they become, their names in the table, and how values are written."""
COUNTS: Final = {
    v.REQUESTS: "count",
    v.ABORTED: "aborted",
    v.TIMED_OUT: "timed_out",
    v.CLIPPED: "clipped",
    v.REQUEST_ERRORS: "errors",
}
UNKNOWN_END: Final = "unknown"
"""The finish reason of requests of which the engine does not say why they ended."""
PER_ROLLOUT: Final = (v.TAIL, v.ROLLOUT_BUBBLE, v.ROLLOUT_WALL)
Counted = tuple[dict[str, Histogram], Counter[str]]
"""The histograms of requests of one kind, and the counts of what became of them."""
RolloutNumber = tuple[str, str]


class RequestPoints:
    """The points of the metrics in ``NAMES``: the last of each stream, and the numbers of each training rollout."""

    NAMES: Final = (
        *NUMBERS, *COUNTS, *PER_ROLLOUT, v.PREEMPTIONS, v.ENGINE_PREEMPTIONS, v.OMITTED, v.BAD_REQUESTS, v.KV_PEAK,
    )  # fmt: skip

    def __init__(self) -> None:
        self._last = LastPoints()
        self._rollouts: defaultdict[tuple[str, int], dict[RolloutNumber, float]] = defaultdict(dict)
        self._cache_peak: float | None = None

    def add(self, point: PointView) -> None:
        if point.kind != "gauge":
            self._last.add(point)
        if point.name == v.KV_PEAK:
            self._cache_peak = point.value if self._cache_peak is None else max(self._cache_peak, point.value)
        elif point.name in PER_ROLLOUT and text(point.attributes, v.MODE) != "eval":
            key = point.journal.identity.writer, point.time_ns
            self._rollouts[key][point.name, text(point.attributes, v.SLOWEST)] = point.value

    def rows(self, rollout_share: float, spans: RequestSpans) -> Requests:
        """Return what is known of the requests.

        Args:
            rollout_share: share of the step time that is rollouts.
            spans: of the requests that have some.
        """
        last = self._last.points()
        bad = _sums(last, v.BAD_REQUESTS, v.REASON)
        preemptions = _sums(last, v.ENGINE_PREEMPTIONS, v.PROVIDER)
        counted = _counted(last)
        rows = [_row(kinds, counted, spans) for _, kinds in sorted(_together(last, counted).items())]
        for row in rows:
            if row.preemptions is not None:
                preemptions.pop(row.engine, None)
        return Requests(
            rows=rows,
            tails=self._tails(rollout_share),
            bubble=self._mean((v.ROLLOUT_BUBBLE, "")),
            kv_cache_peak=self._cache_peak,
            engine_preemptions=[
                EnginePreemptions(engine=engine, count=count) for engine, count in sorted(preemptions.items())
            ],
            spans=spans.count,
            omitted=_sums(last, v.OMITTED, v.REASON).total(),
            bad=[BadRequests(reason=reason, count=count) for reason, count in sorted(bad.items()) if count],
        )

    def _mean(self, name: RolloutNumber) -> float | None:
        """Return the mean of a number, weighted by the time of its rollout."""
        wall = v.ROLLOUT_WALL, ""
        found = [(one[name], one[wall]) for one in self._rollouts.values() if name in one and one.get(wall)]
        total = sum(wall_s for _, wall_s in found)
        return sum(value * wall_s for value, wall_s in found) / total if total else None

    def _tails(self, rollout_share: float) -> list[RequestTail]:
        known = {slowest for one in self._rollouts.values() for name, slowest in one if name == v.TAIL}
        tails = []
        for slowest in sorted(known, key=float):
            if (share := self._mean((v.TAIL, slowest))) is not None:
                of_step = share * rollout_share if rollout_share else None
                tails.append(RequestTail(slowest=float(slowest), share=share, step_share=of_step))
        return tails


def _counted(points: Iterable[PointView]) -> dict[RequestKind, Counted]:
    counted: dict[RequestKind, Counted] = defaultdict(lambda: ({}, Counter()))
    for point in points:
        if point.name in NUMBERS and point.count:
            found = Histogram(point.boundaries, point.counts, point.min, point.max)
            _add(counted[kind_of(point)][0], point.name, found)
        elif point.name in COUNTS or point.name == v.PREEMPTIONS:
            counts = counted[kind_of(point)][1]
            counts[point.name] += round(point.value)
            if text(point.attributes, v.FINISH) == UNKNOWN_END:
                counts[UNKNOWN_END] += round(point.value)
    return counted


def _add(histograms: dict[str, Histogram], name: str, more: Histogram) -> None:
    before = histograms.get(name)
    histograms[name] = more if before is None else before.plus(more)


def _together(points: Iterable[PointView], kinds: Iterable[RequestKind]) -> dict[RequestKind, list[RequestKind]]:
    """Gather the models of an engine, as each rank may have a path of its own; not those of one process."""
    models: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for point in points:
        if point.name == v.REQUESTS:
            kind = kind_of(point)
            models[kind.engine, point.journal.identity.writer] |= {kind.model} - {""}
    apart = {engine for (engine, _), names in models.items() if len(names) > 1}
    together: defaultdict[RequestKind, list[RequestKind]] = defaultdict(list)
    for kind in sorted(kinds):
        together[kind if kind.engine in apart else kind._replace(model="")].append(kind)
    return together


def _row(kinds: Sequence[RequestKind], counted: Mapping[RequestKind, Counted], spans: RequestSpans) -> RequestRow:
    histograms: dict[str, Histogram] = {}
    counts: Counter[str] = Counter()
    for kind in kinds:
        counts.update(counted[kind][1])
        for name, histogram in counted[kind][0].items():
            _add(histograms, name, histogram)
    numbers: dict[str, Any] = dict.fromkeys(field for field, _, _ in NUMBERS.values())
    for name, histogram in histograms.items():
        numbers[NUMBERS[name][0]] = _quantiles(histogram, spans.ordered(kinds, name))
    numbers |= {field: counts[name] for name, field in COUNTS.items()}
    if counts[UNKNOWN_END]:
        numbers["clipped"] = None
    return RequestRow(
        engine=kinds[0].engine,
        models=[kind.model for kind in kinds if kind.model],
        is_bulk=kinds[0].submission == "bulk",
        is_evaluation=kinds[0].mode == "eval",
        preemptions=counts.get(v.PREEMPTIONS),
        **numbers,
    )


def _sums(points: Iterable[PointView], name: str, key: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for point in points:
        if point.name == name:
            sums[text(point.attributes, key)] += round(point.value)
    return sums


def _quantiles(histogram: Histogram, ordered: Sequence[float]) -> Quantiles:
    """Take the quantiles of the spans if these are all that the histogram counts, and else estimate them."""
    is_all = len(ordered) == histogram.count
    of = partial(exact_quantile, ordered) if is_all else histogram.quantile
    errors = (0.0, 0.0) if is_all else (histogram.error(0.5), histogram.error(0.99))
    return Quantiles(
        count=histogram.count,
        median=of(0.5),
        p99=of(0.99),
        longest=histogram.high,
        is_exact=errors == (0.0, 0.0),
        error=None if None in errors else max(filter(None, errors), default=0.0),
    )
