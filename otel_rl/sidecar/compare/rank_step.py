"""One step of one rank: what of its spans is compared with other ranks, small enough to wait for them."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import NO_STAGE
from otel_rl.journal.views import SpanView
from otel_rl.records import Attributes
from otel_rl.runs.spans import integer, iteration_of, place, text
from otel_rl.tables.calls import Calls, calls_of, split
from otel_rl.tables.span_table import STAGE_KEYS, SpanTable, StepTable, Texts, join, steps_of, table_of_views

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.tables.forest import Ints

KEYS: Final = (*STAGE_KEYS, v.SUBMISSION)
CONTAINER_KEYS: Final = frozenset((v.ITERATION, v.LOOP_NAME, v.TRUNCATED))
LAST_SPANS_S: Final = 12.0
"""The last spans of a step are written within this time after its end: the flusher writes parents first, and waits 10 s
at most for the device time of a stage. It is measured by our clock or, in a backlog, by the rank's own later steps."""
LAST_SPANS_STEPS: Final = 2
"""Without a device nothing is pending: so many further steps are enough if memory is short."""
KEPT_SPANS: Final = 200_000
"""Spans of all ranks that wait for the end of their step; above that, the oldest traces go."""
KEPT_PASSED: Final = 256
"""Traces of one writer that are remembered once they were removed: the container of a failed step is mostly read before
its stages, which come within 10 s. That is so many steps of 40 ms."""
KEPT_TABLES: Final = 16
"""Batches of spans that wait; more are joined."""
WAITING: Final = ("trace", "id", "parent", "begin", "end", "is_own", "name", *STAGE_KEYS)
"""The columns of spans that wait for the end of their step."""
COLLECTIVE: Final = np.dtype(
    [
        *((name, "i8") for name in ("group", "operation", "size", "sequence", "begin", "duration")),
        *(("id", "u8"), ("parent", "u8"), ("is_idle", "?")),
    ]
)
"""A collective on one rank: numbers of texts, size of the group, number from 1 or 0 for none, times in ns, ids of the
span and its parent, and whether it is in a stage that is idle already."""
_MIX: Final = 0x9E3779B97F4A7C15


class Role(NamedTuple):
    """Ranks whose steps are compared."""

    attempt: str
    role: str


def role_of(resource: Attributes) -> Role:
    """Return the role and attempt of a resource."""
    return Role(text(resource, v.ATTEMPT_ID), text(resource, v.ROLE))


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step of one rank."""

    container: SpanView
    other_ns: int
    """Time under no stage."""
    calls: Calls
    """Its own alone: ``rank_step`` is 0."""
    collectives: NDArray[np.void]
    """Those that can be compared, in order of their begins: an array of ``COLLECTIVE``."""
    names: Sequence[str]
    """Their groups and operations, by number; those of all steps."""
    comm_count: int
    """Collectives of the step, spans or not."""

    @property
    def role(self) -> Role:
        return role_of(self.resource)

    @property
    def rank(self) -> int:
        return integer(self.resource, v.RANK)

    @property
    def loop(self) -> str:
        return text(self.container.attributes, v.LOOP_NAME)

    @property
    def number(self) -> int:
        return iteration_of(self.container.attributes) or 0

    @property
    def begin_ns(self) -> int:
        return self.container.start_ns

    @property
    def end_ns(self) -> int:
        return self.container.end_ns

    @property
    def resource(self) -> Attributes:
        return self.container.resource

    @property
    def world_size(self) -> int:
        """Ranks of the role; 0 if that is not known."""
        return integer(self.resource, v.WORLD_SIZE)

    @property
    def pipeline(self) -> int:
        """Return the pipeline stage, which peers share."""
        return place(self.resource, v.RANK_PP)


@dataclass(slots=True)
class _Trace:
    """What one writer recorded in one trace so far."""

    writer: str
    spans: int = 0
    container: SpanView | None = None
    ended_at: float = 0.0
    """When its container was read, monotonic, s."""
    steps: int = 0
    """Steps of the same writer that had ended with it."""


class StepCollector:
    """Collects the spans of all writers until their steps have ended. A trace is a number, each writer's its own."""

    def __init__(self, kept_spans: int = KEPT_SPANS) -> None:
        self.ranks: dict[str, tuple[Role, int]] = {}
        """Role and rank of every writer that had a container."""
        self.alone: set[str] = set()
        """Writers whose steps are those of one rank alone."""
        self.overflown = 0
        """Steps of one rank that were given up because there were too many spans."""
        self._kept_spans = kept_spans
        self._names = Texts()
        self._writers = Texts()
        self._traces: OrderedDict[int, _Trace] = OrderedDict()
        """In the order in which they were added to."""
        self._pending: list[SpanTable] = []
        """The spans of these traces without the containers, and of some that were removed."""
        self._spans = 0
        self._passed: defaultdict[str, dict[int, bool]] = defaultdict(dict)
        """The traces that were removed last, by writer, and whether the step's container was still to come."""
        self._steps: Counter[str] = Counter()
        """Whole steps that ended, by writer."""
        self._reached_ns: dict[str, int] = {}
        """End of the container that was read last, by writer and by its clock."""
        self._on_device: set[str] = set()
        """Writers whose stages wait for a device's time."""
        self._early: list[ComparedStep] = []
        """Steps that were removed to make room."""

    def add(self, spans: SpanTable, writers: Sequence[str], known_from_ns: Sequence[int], now: float) -> None:
        """Add spans, unless their steps were skipped or removed. Cost: 2 us a span.

        Args:
            spans: with the ``view`` of each container.
            writers: whose each is.
            known_from_ns: by span; steps that began before are not whole.
            now: monotonic, s.
        """
        writer = self._writers.of(writers)
        listed = self._writers.listed
        is_alone = np.array([one in self.alone for one in listed], bool)[writer]
        with np.errstate(over="ignore"):
            spans.columns["trace"] = spans["trace"] ^ (writer + 1).astype(np.uint64) * np.uint64(_MIX)
        is_timed = spans.is_text(v.CLOCK, "host") | spans.has(v.DEVICE_TIME)
        self._on_device |= {listed[one] for one in np.unique(writer[is_timed & ~is_alone]).tolist()}
        is_container = np.array([one is not None for one in spans["view"].tolist()], bool)
        for row in np.flatnonzero(is_container & ~is_alone).tolist():
            if writers[row] not in self.alone:
                self._end(int(spans["trace"][row]), writers[row], spans["view"][row], known_from_ns[row], now)
        is_alone = np.array([one in self.alone for one in listed], bool)[writer]
        kept = np.flatnonzero(~is_alone & ~spans.has(v.SUBMISSION))
        self._add(spans.take(kept), writer[kept], is_container[kept])
        self._make_room()

    def _end(self, key: int, writer: str, span: SpanView, known_from_ns: int, now: float) -> None:
        """Note the container of a trace."""
        self._reached_ns[writer] = span.end_ns
        self.ranks[writer] = role_of(span.resource), integer(span.resource, v.RANK)
        is_whole = _is_whole_step(span)
        if is_whole and span.resource.get(v.WORLD_SIZE) == 1:
            self.alone.add(writer)
            self.forget(writer)
            return
        if not is_whole or span.start_ns < known_from_ns:
            self._drop(key, writer)
            return
        self._steps[writer] += 1
        passed = self._passed[writer]
        if key in passed:
            self.overflown += passed[key]
            passed[key] = False
            return
        trace = self._traces.setdefault(key, _Trace(writer))
        trace.container, trace.ended_at, trace.steps = span, now, self._steps[writer]

    def _add(self, spans: SpanTable, writer: Ints, is_container: NDArray[np.bool_]) -> None:
        """Let spans wait for the end of their traces, those that were touched last after the others."""
        back = spans["trace"][::-1]
        keys, last, of = np.unique(back, return_index=True, return_inverse=True)
        counts = np.bincount(of[~is_container[::-1]], minlength=len(keys))
        is_kept = np.zeros(len(keys), bool)
        for at in np.argsort(-last, kind="stable").tolist():
            key, name = int(keys[at]), self._writers.listed[writer[len(back) - 1 - last[at]]]
            if key in self._passed[name]:
                continue
            is_kept[at] = True
            trace = self._traces.setdefault(key, _Trace(name))
            self._traces.move_to_end(key)
            trace.spans += int(counts[at])
            self._spans += int(counts[at])
        kept = is_kept[of][::-1] & ~is_container
        if kept.any():
            self._pending.append(SpanTable(spans.texts, {name: spans[name][kept] for name in WAITING}))

    def completed(self, now: float, read: Collection[str], finished: Collection[str] = ()) -> Iterator[ComparedStep]:
        """Remove and return the steps whose spans are all there, of writers that are read to their end, or are dead."""
        early, self._early = self._early, []
        yield from early
        done = [
            (key, trace)
            for key, trace in self._traces.items()
            if trace.container is not None
            and (
                (now - trace.ended_at >= LAST_SPANS_S and trace.writer in read)
                or self._reached_ns[trace.writer] - trace.container.end_ns >= LAST_SPANS_S * 1e9
                or trace.writer in finished
            )
        ]
        for key, trace in done:
            self._drop(key, trace.writer)
        yield from self._take(done)

    def forget(self, writer: str) -> None:
        """Forget what a writer left without an end."""
        for key in [key for key, trace in self._traces.items() if trace.writer == writer]:
            self._drop(key, writer)
        self._passed.pop(writer, None)
        self._steps.pop(writer, None)

    def clear(self) -> None:
        """Forget everything that waits."""
        for key, trace in list(self._traces.items()):
            self._drop(key, trace.writer)
        self._pending.clear()
        self._early.clear()

    def _drop(self, key: int, writer: str) -> None:
        passed = self._passed[writer]
        passed[key] = False
        if len(passed) > KEPT_PASSED:
            del passed[next(iter(passed))]
        trace = self._traces.pop(key, None)
        self._spans -= trace.spans if trace else 0

    def _make_room(self) -> None:
        """Remove the oldest traces; a step that is certainly complete is compared all the same."""
        early = []
        while self._spans > self._kept_spans:
            key, trace = next(iter(self._traces.items()))
            self._drop(key, trace.writer)
            if trace.container is None:
                self._passed[trace.writer][key] = True
            elif self._steps[trace.writer] - trace.steps >= LAST_SPANS_STEPS and trace.writer not in self._on_device:
                early.append((key, trace))
            else:
                self.overflown += 1
        self._early += self._take(early)

    def _take(self, done: Sequence[tuple[int, _Trace]]) -> list[ComparedStep]:
        """Return the steps of traces that were removed, in the order of their begins, and let go of what is removed."""
        steps = [(key, trace.container) for key, trace in done if trace.container is not None]
        steps.sort(key=lambda step: step[1].start_ns)
        if not steps and sum(map(len, self._pending)) <= 2 * self._kept_spans:
            return []
        keys = [np.array(list(some), np.uint64) for some in (dict(steps), self._traces)]
        taken, left = parts = [], []  # type: tuple[list[SpanTable], list[SpanTable]]
        for table in self._pending:
            for part, known in zip(parts, keys, strict=True):
                kept = np.isin(table["trace"], known)
                part.extend([table.take(kept)] if kept.any() else [])
        self._pending = left if len(left) <= KEPT_TABLES else [join(left)]
        return _compared_steps(steps, taken, self._names) if steps else []


def _is_whole_step(container: SpanView) -> bool:
    """Return whether it holds a step that no exception or death cut short."""
    is_cut = container.status_code == 2 or v.TRUNCATED in container.attributes
    return iteration_of(container.attributes) is not None and not is_cut


def _compared_steps(
    steps: Sequence[tuple[int, SpanView]], tables: Sequence[SpanTable], names: Texts
) -> list[ComparedStep]:
    """Sum up steps. Cost: 4 ms, and 4 us a span.

    Args:
        steps: the traces with their containers.
        tables: the other spans of these traces.
        names: those of groups and operations so far.
    """
    keys = np.array([key for key, _ in steps], np.uint64)
    heads = table_of_views([container for _, container in steps], Texts(), STAGE_KEYS)
    heads.columns["trace"] = keys
    table = join([SpanTable(heads.texts, {name: heads[name] for name in WAITING}), *tables])
    order = np.argsort(keys)
    made = steps_of(table, order[np.searchsorted(keys, table["trace"], sorter=order)])
    stages, within = made.stages, made.within
    is_stage = (within.inside.level == 1) & ~within.column(stages.is_comm)
    counts = stages.direct[0][within.roots]
    np.add.at(counts, within.inside.root[is_stage], within.column(stages.total[0])[is_stage])
    columns = (
        within.activities()[:, NO_STAGE].tolist(),
        split(calls_of(within), len(steps)),
        _collectives(made, table, len(steps), names),
        counts.tolist(),
    )
    return [
        ComparedStep(container, other_ns, calls, collectives, names.listed, count)
        for (_, container), other_ns, calls, collectives, count in zip(steps, *columns, strict=True)
    ]


def _collectives(made: StepTable, table: SpanTable, steps: int, names: Texts) -> list[NDArray[np.void]]:
    """Return the collectives of each step whose durations show who waited."""
    stages = made.stages
    shown = np.flatnonzero(stages.shows_waits & ~made.is_behind)
    row = stages.forest.order[shown]
    meetings = [(names.number(group), names.number(operation), size) for group, operation, size in stages.meetings]
    found = np.empty(len(shown), COLLECTIVE)
    found["group"], found["operation"], found["size"] = np.array(meetings or [(0, 0, 0)])[stages.met[shown]].T
    found["sequence"], found["begin"] = stages.sequence[shown], stages.begin[shown]
    found["duration"] = np.maximum(0, stages.end[shown] - stages.begin[shown])
    found["id"], found["parent"] = table["id"][row], table["parent"][row]
    found["is_idle"] = stages.forest.is_below(stages.is_idle)[shown]
    step = table["trace"][row].astype(np.int64)
    order = np.lexsort((found["begin"], step))
    by_step: list[NDArray[np.void]] = np.split(found[order], np.searchsorted(step[order], np.arange(1, steps)))
    return by_step
