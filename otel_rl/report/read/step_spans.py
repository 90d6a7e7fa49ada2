"""The spans of chosen steps, and the requests of all steps, read from the journals by columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.journal.read import Journal, Run, SpanView, span_columns
from otel_rl.report.data.course import Lane, RequestCourse
from otel_rl.report.data.ranks import Rank
from otel_rl.report.read.request_spans import DURATION
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import is_container, is_derived, is_request, label, number, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.journal.columns.decode import SpanColumns

MOST_SPANS: Final = 6_000
"""Most spans of a step that are kept."""
MOST_LANES: Final = 48
MOST_LEVELS: Final = 24
"""Spans of one process that overlap deeper than this are left out."""
REQUEST_NUMBERS: Final = (
    v.REQUEST_TTFT, v.REQUEST_QUEUE, v.REQUEST_PREFILL, v.REQUEST_TPOT, v.INPUT_TOKENS, v.OUTPUT_TOKENS, DURATION,
)  # fmt: skip
KEYS: Final = (
    v.LOGPROB_KIND, v.IDLE_REASON, v.CHECKPOINT_LOAD, v.SUBMISSION, v.REQUEST_QUEUE, v.REQUEST_PREFILL,
)  # fmt: skip
LANES: Final = {"driver": 0, "agent": 2, "scheduler": 2, "rollout": 3, "server": 3, "actor_infer": 3, "reward": 4}
"""The order of lanes by how a role begins; ranks that train, and other roles, stand after the driver."""
PHASES: Final = (v.SETUP, v.TEARDOWN)
StepKey = tuple[str, str, int]


class Window(NamedTuple):
    """A step whose spans are wanted."""

    key: StepKey
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class StepSpansRead:
    """What was read of a run."""

    traces: dict[bytes, StepKey] = field(default_factory=dict)
    """The step of each trace."""
    phases: set[bytes] = field(default_factory=set)
    """The traces of set-ups and tear-downs."""
    requests: dict[str, tuple[list[NDArray[Any]], list[NDArray[np.float64]]]] = field(default_factory=dict)
    """By attribute: traces and values, in pieces."""

    def request_courses(self, steps: Mapping[StepKey, int]) -> list[RequestCourse]:
        """Return the quantiles of each number of the requests of some steps, which are given with their places."""
        places = {trace: steps[key] for trace, key in self.traces.items() if key in steps}
        numbers = {place: key[2] for key, place in steps.items()}
        found = (
            _course(name, *self.requests[name], places, numbers) for name in REQUEST_NUMBERS if name in self.requests
        )
        return [one for one in found if one.steps]


def _course(
    name: str,
    traces: Sequence[NDArray[Any]],
    values: Sequence[NDArray[np.float64]],
    places: Mapping[bytes, int],
    numbers: Mapping[int, int],
) -> RequestCourse:
    of = np.array([places.get(trace, -1) for trace in np.concatenate(traces).tolist()], np.int64)
    value = np.concatenate(values)
    order = np.lexsort((value, of))
    order = order[of[order] >= 0]
    step, first, count = np.unique(of[order], return_index=True, return_counts=True)
    value = value[order]

    def quantile(share: float) -> list[float]:
        # the least value that this share of the requests does not exceed, as in ``Quantiles``
        exact: list[float] = value[first + np.maximum(0, np.ceil(count * share).astype(np.int64) - 1)].tolist()
        return exact

    return RequestCourse(
        name=name,
        steps=[numbers[one] for one in step.tolist()],
        counts=count.tolist(),
        median=quantile(0.5),
        p99=quantile(0.99),
        longest=quantile(1.0),
    )


def read_steps(run: Run) -> StepSpansRead:
    """Read which trace is which step, and the numbers of the requests. Cost: 0.5 us a span."""
    read = StepSpansRead()
    for journal in run.journals:
        for batch in span_columns(journal):
            names = np.array([is_container(one) or one in PHASES for one in batch.texts] or [False], bool)
            kept = names[batch.rows["name"]] & (batch.rows["is_own"] != 0)
            for span in batch.views(journal, (v.ITERATION, v.LOOP_NAME), kept):
                if isinstance(iteration := span.attributes.get(v.ITERATION), int):
                    key = text(span.resource, v.ATTEMPT_ID), text(span.attributes, v.LOOP_NAME), iteration
                    read.traces.setdefault(span.trace_id, key)
                else:
                    read.phases.add(span.trace_id)
            _add_requests(batch, read)
    return read


def _add_requests(batch: SpanColumns, read: StepSpansRead) -> None:
    if v.SUBMISSION not in batch.known:
        return
    rows = batch.known[v.SUBMISSION][0]
    if v.MODE in batch.known:
        of_mode, modes = batch.known[v.MODE]
        rows = np.setdiff1d(rows, of_mode[np.array([one == "eval" for one in batch.texts], bool)[modes]])
    for name in REQUEST_NUMBERS:
        if name == DURATION:
            of, values = (
                rows,
                (batch.rows["end"][rows].astype(np.int64) - batch.rows["start"][rows].astype(np.int64)) / 1e9,
            )
        elif name in batch.known:
            of, values = batch.known[name]
            is_kept = np.isin(of, rows)
            of, values = of[is_kept], values[is_kept].astype(np.float64)
        else:
            continue
        traces, numbers = read.requests.setdefault(name, ([], []))
        traces.append(batch.rows["trace"][of])
        numbers.append(values)


def lanes_of(run: Run, read: StepSpansRead, windows: Sequence[Window]) -> dict[StepKey, tuple[list[Lane], int]]:
    """Read the spans of some steps; of a process that works for several steps at once, what lies in their times.

    Returns:
        The lanes of each step, and how many processes have spans in it.
    """
    found: defaultdict[StepKey, list[tuple[Rank, str, list[SpanView]]]] = defaultdict(list)
    for journal in run.journals:
        by_step: defaultdict[StepKey, list[SpanView]] = defaultdict(list)
        for batch in span_columns(journal):
            for window, span in _of_windows(batch, journal, read, windows):
                by_step[window.key].append(span)
        for key, spans in by_step.items():
            found[key].append((rank_of(spans[0].resource), journal.identity.writer, spans))
    begins = {one.key: one for one in windows}
    return {key: (_lanes(begins[key], processes), len(processes)) for key, processes in found.items()}


def _of_windows(
    batch: SpanColumns, journal: Journal, read: StepSpansRead, windows: Sequence[Window]
) -> Iterator[tuple[Window, SpanView]]:
    traces = batch.rows["trace"]
    known, number = np.unique(traces, return_inverse=True)
    of_trace = [read.traces.get(trace) for trace in known.tolist()]
    begin, end = batch.rows["start"].astype(np.int64), batch.rows["end"].astype(np.int64)
    apart = [step is None and trace not in read.phases for step, trace in zip(of_trace, known.tolist(), strict=True)]
    is_apart = np.array(apart, bool)[number]
    for window in windows:
        is_step = np.array([one == window.key for one in of_trace], bool)[number]
        kept = is_step | (is_apart & (begin < window.end_ns) & (end > window.begin_ns))
        if kept.any():
            for span in batch.views(journal, KEYS, kept):
                if not is_container(span.name) and span.name != v.LOOP and not is_derived(span):
                    yield window, span


def _lanes(window: Window, processes: Sequence[tuple[Rank, str, list[SpanView]]]) -> list[Lane]:
    ordered = sorted(processes, key=lambda one: (_order(one[0].role.lower()), one[0], one[1]))
    shown = _spread(ordered, MOST_LANES)
    most = max(8, MOST_SPANS // max(1, len(shown)))
    return [_lane(rank, spans, window.begin_ns, most) for rank, _, spans in shown]


def _order(role: str) -> int:
    return next((place for name, place in LANES.items() if role.startswith(name)), 1)


def _spread(ordered: Sequence[Any], most: int) -> Sequence[Any]:
    """Return at most so many of some rows, from the first to the last."""
    if len(ordered) <= most:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most)]


def _lane(rank: Rank, spans: Sequence[SpanView], begin_ns: int, most: int) -> Lane:
    kept = sorted(spans, key=lambda one: one.start_ns - one.end_ns)[:most]
    kept.sort(key=lambda one: (one.start_ns, -one.end_ns))
    boxes: list[tuple[int, int, int, str, bool, str]] = []
    for span, level in zip(kept, _levels(kept), strict=True):
        if level < MOST_LEVELS:
            for start_ns, end_ns, name, is_wait, id in _boxes(span):
                boxes.append((start_ns - begin_ns, end_ns - begin_ns, level, name, is_wait, id))
    begins, ends, levels, labels, waits, ids = zip(*boxes, strict=True) if boxes else ((),) * 6
    shown = len(set(ids))
    return Lane(
        role=rank.role,
        rank=rank.rank,
        begin_ns=begins,
        end_ns=ends,
        level=levels,
        labels=labels,
        is_wait=waits,
        ids=ids,
        left_out=len(spans) - shown,
    )


def _levels(spans: Sequence[SpanView]) -> list[int]:
    """Return how deep each span lies: below the one around it, and beside none that it overlaps."""
    ends: list[int] = []
    level_of: dict[bytes, int] = {}
    levels = []
    for span in spans:
        level = level_of.get(span.parent_id, -1) + 1
        while level < len(ends) and ends[level] > span.start_ns:
            level += 1
        ends += [0] * (level + 1 - len(ends))
        ends[level] = span.end_ns
        level_of[span.span_id] = level
        levels.append(level)
    return levels


def _boxes(span: SpanView) -> Iterator[tuple[int, int, str, bool, str]]:
    """Return what is drawn of a span: of a request its queue, prefill and decode, where they are known."""
    name, id = label(span.name, span.attributes), span.span_id.hex()
    begin_ns, end_ns = span.start_ns, max(span.start_ns, span.end_ns)
    if not is_request(span):
        yield begin_ns, end_ns, name, span.name in (v.IDLE, v.COMM), id
        return
    for key, part in ((v.REQUEST_QUEUE, "request queue"), (v.REQUEST_PREFILL, "request prefill")):
        until_ns = min(end_ns, begin_ns + round((number(span.attributes, key) or 0.0) * 1e9))
        if until_ns > begin_ns:
            yield begin_ns, until_ns, part, key == v.REQUEST_QUEUE, id
            begin_ns = until_ns
    yield begin_ns, end_ns, "request decode" if begin_ns > span.start_ns else "request", False, id


def traces_of(read: StepSpansRead, keys: Collection[StepKey]) -> dict[StepKey, str]:
    """Return the trace of some steps, in hex."""
    return {key: trace.hex() for trace, key in read.traces.items() if key in keys}
