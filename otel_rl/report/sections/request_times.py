"""Rollout requests: times, tail, how they ended, what is wrong with them; training and evaluation apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.analysis.histogram import Histogram, exact_quantile
from otel_rl.journal.read import PointView
from otel_rl.report.data.details import BadRequests, EnginePreemptions, Quantiles, RequestRow, Requests, RequestTail
from otel_rl.report.data.report import Report, StageRow
from otel_rl.report.read.last_points import LastPoints
from otel_rl.report.read.request_spans import RequestKind, RequestSpans, kind_of
from otel_rl.report.section import Block, Line, Section, Table, notes
from otel_rl.runs.format import about, count, listed, percent, plural, seconds
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
SHOWN: Final = 4
QUEUE_SHARE: Final = 0.1
"""From this share of TTFT on it is the position in the queue."""
BULK_NOTE: Final = "Submitted in bulk, TTFT is queue position: judge the engine by prefill and TPOT."
ABOUT_NOTE: Final = "~: estimated from counts of all requests, since not all of them are spans."
CLIPPED_NOTE: Final = (
    "clipped: {} ended at the length limit. TRL's own share is {}: it takes a pad token that was sampled for an end."
)
BAD: Final = {
    "unfinished": "without an end",
    "reversed": "with times in the wrong order",
    "impossible_time": "with a time that cannot be",
    "tokens": "with a number of tokens that cannot be",
    "repeated_id": "left out: repeated, by id and submission",
    "another_attempt": "with an id that came before, by another submission: counted as another attempt",
    "after_rollout": "after the end of the rollout",
    "late": "after the end of the step: in metrics, no spans (`otel_rl.request` takes a parent)",
    "forked": "from a forked worker",
    "unreadable": "that could not be read",
    "no_request": "that were none",
    "not_a_number": "with something that is no number",
}


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

    def rows(self, stages: Sequence[StageRow], spans: RequestSpans) -> Requests:
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
            tails=self._tails(stages),
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

    def _tails(self, stages: Sequence[StageRow]) -> list[RequestTail]:
        rollout_share = sum(row.share for row in stages if row.inside is None and row.stage == v.SAMPLE)
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


def _blocks(report: Report) -> list[Block]:
    requests = report.requests
    rows = sorted(requests.rows, key=lambda row: (row.is_evaluation, -row.count))
    shown = rows[:SHOWN]
    is_trained = any(not row.is_evaluation for row in shown)
    blocks: list[Block] = []
    for row in shown:
        is_short = row.is_evaluation and is_trained
        blocks += [Line(f"{_head(row)}{_lengths(row)}")] if is_short else [Line(_head(row)), _table(row)]
    blocks += notes(BULK_NOTE if any(map(_is_queue_position, shown)) else "", _about_note(shown), _clipped_note(report))
    blocks += [Line(line) for line in (*_tail_lines(requests), *_span_lines(report, rows))]
    reasons = [f"{plural(bad.count, 'request')} {BAD.get(bad.reason, bad.reason)}" for bad in requests.bad]
    return blocks + [Line(reason, "warning") for reason in reasons]


def _about_note(rows: Iterable[RequestRow]) -> str:
    numbers = (getattr(row, field) for row in rows for field, _, _ in NUMBERS.values())
    return "" if all(found is None or found.is_exact for found in numbers) else ABOUT_NOTE


def _clipped_note(report: Report) -> str:
    """Return why the trainer's own share, which is among the curves, is less; empty if it is not."""
    own = next((one.mean for one in report.series if one.name == v.RESPONSE_CLIPPED and not one.qualifiers), None)
    rows = [row for row in report.requests.rows if not row.is_evaluation]
    clipped, total = sum(row.clipped or 0 for row in rows), sum(row.count for row in rows)
    if own is None or report.system != "trl" or not total or clipped / total <= own:
        return ""
    shares = percent(clipped / total), percent(own)
    return "" if len({*shares}) == 1 else CLIPPED_NOTE.format(*shares)


def _is_queue_position(row: RequestRow) -> bool:
    """Return whether TTFT shows the position in the queue; an engine that starts a whole batch at once has none."""
    if not row.is_bulk or row.ttft_s is None:
        return False
    return row.queue_s is None or row.queue_s.p99 >= QUEUE_SHARE * row.ttft_s.p99


def _table(row: RequestRow) -> Table:
    table = Table.of("requests", "median", "p99", "longest")
    for field, name, write in NUMBERS.values():
        found: Quantiles | None = getattr(row, field)
        if found is not None and not _says_nothing(row, field):
            table.add(name, *_cells(found, write))
    return table


def _says_nothing(row: RequestRow, field: str) -> bool:
    """Return whether nothing waits in a queue: then prefill is TTFT."""
    is_queued = row.queue_s is None or row.queue_s.longest > 0
    return not is_queued and (field == "queue_s" or (field == "prefill_s" and row.prefill_s == row.ttft_s))


def _lengths(row: RequestRow) -> str:
    """Return the length and the duration of the requests of an evaluation: it has no table beside the training's."""
    said = {"tokens": (row.response_tokens, count), "": (row.duration_s, seconds)}
    medians = [f"{_cells(found, write)[0]} {what}".strip() for what, (found, write) in said.items() if found]
    return f"; median {' and '.join(medians)}" if medians else ""


def _cells(found: Quantiles, write: Callable[[float], str]) -> list[str]:
    estimate = write if found.is_exact else partial(about, error=found.error, write=write, most=found.longest)
    return [estimate(found.median), estimate(found.p99), write(found.longest)]


def _head(row: RequestRow) -> str:
    who = " ".join(filter(None, (row.engine, listed(row.models))))
    kinds = {"aborted": row.aborted, "timed out": row.timed_out, "failed": row.errors, "clipped": row.clipped}
    said = [
        f"{count(number)} {kind} ({percent(number / row.count)})"
        for kind, number in kinds.items()
        if number and row.count
    ]
    said += [plural(row.preemptions, "preemption")] if row.preemptions else []
    what = "evaluation" if row.is_evaluation else "bulk" if row.is_bulk else "streamed"
    return f"{who}, {what}: {plural(row.count, 'request')}{', ' if said else ''}{listed(said, 5)}"


def _tail_lines(requests: Requests) -> list[str]:
    lines = []
    if requests.tails:
        first, *others = requests.tails
        shares = [f"{tail.slowest * 100:.0f} % {percent(tail.share)}" for tail in others]
        took = f"the last {first.slowest * 100:.0f} % of the requests took {percent(first.share)} of the rollout"
        lines.append(", ".join([took, *shares]))
    if requests.bubble is not None:
        lines.append(
            f"finished responses waited for the longest: {percent(requests.bubble)} of the generation capacity"
        )
    if requests.kv_cache_peak is not None:
        lines.append(f"highest KV-cache usage: {percent(requests.kv_cache_peak)}")
    lines += [
        f"{said.engine}: {plural(said.count, 'preemption')} of all its requests together"
        for said in requests.engine_preemptions
        if said.count
    ]
    return lines


def _span_lines(report: Report, rows: list[RequestRow]) -> list[str]:
    requests, total = report.requests, sum(row.count for row in rows)
    if not total:
        return []
    hidden = len(rows) - SHOWN
    lines = [f"{plural(hidden, 'more kind')} of requests in --json"] if hidden > 0 else []
    if requests.spans >= total:
        return lines
    undecided = total - requests.spans - requests.omitted
    rest = f"; {_undecided(report, undecided)}" if undecided > 0 else ""
    return [*lines, f"{count(requests.spans)} of {plural(total, 'request')} are spans{rest}; metrics count all"]


def _undecided(report: Report, number: int) -> str:
    """Return why it is not known of requests whether they become spans: that is decided after their rollout."""
    if report.state == "alive":
        return f"of {count(number)} it is open until their rollouts are over"
    if report.state != "finished":
        return f"of {count(number)} it is not known: their process ended before"
    has_calls = any(row.stage == v.SAMPLE_SERVE for role in report.roles for row in role.stages)
    calls = f" (their calls are {v.SAMPLE_SERVE})" if has_calls else ""
    return f"the run ended before it was decided which of {count(number)} become spans{calls}"


REQUESTS: Final = Section(title="Requests", data={"requests": lambda source: source.requests}, blocks=_blocks)
