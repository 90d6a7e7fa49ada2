"""Rollout requests of a report: from histograms and counters of all processes, training and evaluation apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import Histogram
from otel_rl.journal.read import PointView
from otel_rl.report.model import StageRow
from otel_rl.report.pieces import text
from otel_rl.report.request_model import BadRequests, Quantiles, RequestRow, Requests, Tail

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
    v.PREEMPTIONS: "preemptions",
}
NAMES: Final = frozenset(
    (*NUMBERS, *COUNTS, v.OMITTED, v.BAD_REQUESTS, v.TAIL, v.ROLLOUT_BUBBLE, v.ROLLOUT_WALL, v.KV_PEAK)
)
"""The metrics that a report's requests are made of."""
PER_ROLLOUT: Final = (v.TAIL, v.ROLLOUT_BUBBLE, v.ROLLOUT_WALL)

Kind = tuple[str, str, str, str]
"""Engine, model, submission, mode."""


def request_rows(points: Iterable[PointView], stages: Sequence[StageRow]) -> Requests:
    """Sum up the requests of a run.

    Args:
        points: of the metrics in ``NAMES``.
        stages: of the run, for the share of the rollout in the step.
    """
    points = list(points)
    last = _last(point for point in points if point.kind != "gauge")
    kinds = _kinds(last)
    bad: Counter[str] = Counter()
    for point in last:
        if point.name == v.BAD_REQUESTS:
            bad[text(point.attributes, v.REASON)] += round(point.value)
    omitted = sum(round(point.value) for point in last if point.name == v.OMITTED)
    rollouts = _rollouts(points)
    return Requests(
        rows=[_row(kind, histograms, counts) for kind, (histograms, counts) in sorted(kinds.items())],
        tails=_tails(rollouts, stages),
        bubble=_weighted((found.get((v.ROLLOUT_BUBBLE, "")), found[v.ROLLOUT_WALL, ""]) for found in rollouts),
        kv_cache_peak=max((point.value for point in points if point.name == v.KV_PEAK), default=None),
        omitted=omitted,
        bad=[BadRequests(reason=reason, count=count) for reason, count in sorted(bad.items()) if count],
    )


def _last(points: Iterable[PointView]) -> list[PointView]:
    """Keep the last point of each cumulative stream."""
    last: dict[tuple[object, ...], PointView] = {}
    for point in points:
        key = (point.journal.identity.writer, point.name, frozenset(point.attributes.items()))
        if key not in last or point.time_ns >= last[key].time_ns:
            last[key] = point
    return list(last.values())


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
        elif point.name in COUNTS:
            kinds[engine, model, submission, mode][1][point.name] += round(point.value)
    return kinds


def _row(kind: Kind, histograms: dict[str, Histogram], counts: Counter[str]) -> RequestRow:
    engine, model, submission, mode = kind
    numbers: dict[str, Any] = {field: _quantiles(histograms.get(name)) for name, field in NUMBERS.items()}
    numbers.update({field: counts[name] for name, field in COUNTS.items()})
    return RequestRow(engine=engine, model=model, is_bulk=submission == "bulk", is_evaluation=mode == "eval", **numbers)


def _quantiles(histogram: Histogram | None) -> Quantiles | None:
    if histogram is None:
        return None
    return Quantiles(
        count=histogram.count, median=histogram.quantile(0.5), p99=histogram.quantile(0.99), longest=histogram.high
    )


def _rollouts(points: Iterable[PointView]) -> list[dict[tuple[str, str], float]]:
    """Put together what is said of each rollout of the training, by metric and share of the slowest."""
    found: dict[tuple[str, int], dict[tuple[str, str], float]] = defaultdict(dict)
    for point in points:
        if point.name in PER_ROLLOUT and text(point.attributes, v.MODE) != "eval":
            rollout = found[point.journal.identity.writer, point.time_ns]
            rollout[point.name, text(point.attributes, v.SLOWEST)] = point.value
    return [rollout for rollout in found.values() if rollout.get((v.ROLLOUT_WALL, ""))]


def _tails(rollouts: Sequence[dict[tuple[str, str], float]], stages: Sequence[StageRow]) -> list[Tail]:
    rollout_share = sum(row.share for row in stages if row.inside is None and row.stage == v.SAMPLE)
    tails = []
    for slowest in sorted({key[1] for rollout in rollouts for key in rollout if key[0] == v.TAIL}, key=float):
        share = _weighted((rollout.get((v.TAIL, slowest)), rollout[v.ROLLOUT_WALL, ""]) for rollout in rollouts)
        if share is not None:
            of_step = share * rollout_share if rollout_share else None
            tails.append(Tail(slowest=float(slowest), share=share, step_share=of_step))
    return tails


def _weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Give the mean of the known values, each with the weight behind it."""
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
