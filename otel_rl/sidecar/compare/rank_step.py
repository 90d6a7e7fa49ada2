"""One step of one rank: what of its spans is compared with other ranks, small enough to wait for them."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import NO_STAGE
from otel_rl.journal.views import SpanView
from otel_rl.records import Attributes
from otel_rl.runs.spans import integer, is_container, is_request, iteration_of, place, text

if TYPE_CHECKING:
    from otel_rl.tables.calls import Calls

KEYS: Final = frozenset((
    v.ITERATION, v.LOOP_NAME, v.IDLE_REASON, v.LOGPROB_KIND, v.COMM_COUNT, v.COMM_TIME, v.COMM_HIDDEN, v.CLOCK,
    v.COMM_OPERATION, v.COMM_BYTES, v.COMM_GROUP, v.COMM_GROUP_SIZE, v.COMM_SEQUENCE, v.COMM_ASYNC, v.SUBMISSION,
    v.DEVICE_TIME, v.CHECKPOINT_LOAD, v.CHECKPOINT_ASYNC, v.TRUNCATED,
))  # fmt: skip
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


class Role(NamedTuple):
    """Ranks whose steps are compared."""

    attempt: str
    role: str


def role_of(resource: Attributes) -> Role:
    """Return the role and attempt of a resource."""
    return Role(text(resource, v.ATTEMPT_ID), text(resource, v.ROLE))


class RankCollective(NamedTuple):
    """One collective on one rank."""

    operation: str
    group: str
    size: int
    """Ranks of the group."""
    sequence: int
    """From 1; 0 if it has no number."""
    begin_ns: int
    duration_ns: int
    span_id: bytes
    parent_id: bytes
    is_idle: bool
    """Whether it is in a stage that is idle already."""


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step of one rank."""

    role: Role
    rank: int
    loop: str
    number: int
    trace_id: bytes
    begin_ns: int
    end_ns: int
    other_ns: int
    """Time under no stage."""
    calls: Calls
    """Its own alone: ``rank_step`` is 0."""
    collectives: tuple[RankCollective, ...]
    """Those that can be compared."""
    comm_count: int
    """Collectives of the step, spans or not."""
    resource: Attributes

    @property
    def world_size(self) -> int:
        """Ranks of the role; 0 if that is not known."""
        return integer(self.resource, v.WORLD_SIZE)

    @property
    def pipeline(self) -> int:
        """The pipeline stage, which peers share."""
        return place(self.resource, v.RANK_PP)


@dataclass(slots=True)
class _Trace:
    """What one writer recorded in one trace so far."""

    spans: list[SpanView] = field(default_factory=list)
    container: SpanView | None = None
    ended_at: float = 0.0
    """When its container was read, monotonic, s."""
    steps: int = 0
    """Steps of the same writer that had ended with it."""


class StepCollector:
    """Collects the spans of all writers until their steps have ended."""

    def __init__(self, kept_spans: int = KEPT_SPANS) -> None:
        self.ranks: dict[str, tuple[Role, int]] = {}
        """Role and rank of every writer that had a container."""
        self.alone: set[str] = set()
        """Writers whose steps are those of one rank alone."""
        self.overflown = 0
        """Steps of one rank that were given up because there were too many spans."""
        self._kept_spans = kept_spans
        self._traces: OrderedDict[tuple[str, bytes], _Trace] = OrderedDict()
        """In the order in which they were added to."""
        self._spans = 0
        self._passed: defaultdict[str, dict[bytes, bool]] = defaultdict(dict)
        """The traces that were removed last, by writer, and whether the step's container was still to come."""
        self._steps: Counter[str] = Counter()
        """Whole steps that ended, by writer."""
        self._reached_ns: dict[str, int] = {}
        """End of the container that was read last, by writer and by its clock."""
        self._on_device: set[str] = set()
        """Writers whose stages wait for a device's time."""
        self._early: list[ComparedStep] = []
        """Steps that were removed to make room."""

    def add(self, span: SpanView, known_from_ns: int, now: float) -> None:
        """Add a span, unless its step was skipped or removed; steps from before ``known_from_ns`` are not whole."""
        writer = span.journal.identity.writer
        if is_request(span) or writer in self.alone:
            return
        key = writer, span.trace_id
        if span.attributes.get(v.CLOCK) == "host" or v.DEVICE_TIME in span.attributes:
            self._on_device.add(writer)
        if is_container(span.name):
            self._reached_ns[writer] = span.end_ns
            self.ranks[writer] = role_of(span.resource), integer(span.resource, v.RANK)
            is_whole = _is_whole_step(span)
            if is_whole and span.resource.get(v.WORLD_SIZE) == 1:
                self.alone.add(writer)
                self.forget(writer)
                return
            if not is_whole or span.start_ns < known_from_ns:
                self._drop(key)
                return
            self._steps[writer] += 1
        passed = self._passed.get(writer, {})
        if span.trace_id in passed:
            if is_container(span.name):
                self.overflown += passed[span.trace_id]
                passed[span.trace_id] = False
            return
        trace = self._traces.setdefault(key, _Trace())
        self._traces.move_to_end(key)
        if is_container(span.name):
            trace.container, trace.ended_at, trace.steps = span, now, self._steps[writer]
        else:
            trace.spans.append(span)
            self._spans += 1
        while self._spans > self._kept_spans:
            self._give_up()

    def completed(self, now: float, read: Collection[str], finished: Collection[str] = ()) -> Iterator[ComparedStep]:
        """Remove and return the steps whose spans are all there, of writers that are read to their end, or are dead."""
        early, self._early = self._early, []
        yield from early
        done = [
            (key, trace.container)
            for key, trace in self._traces.items()
            if trace.container is not None
            and (
                (now - trace.ended_at >= LAST_SPANS_S and key[0] in read)
                or self._reached_ns[key[0]] - trace.container.end_ns >= LAST_SPANS_S * 1e9
                or key[0] in finished
            )
        ]
        done.sort(key=lambda item: item[1].start_ns)
        yield from _compared_steps([(container, self._drop(key)) for key, container in done])

    def forget(self, writer: str) -> None:
        """Forget what a writer left without an end."""
        for key in [key for key in self._traces if key[0] == writer]:
            self._drop(key)
        self._passed.pop(writer, None)
        self._steps.pop(writer, None)

    def clear(self) -> None:
        """Forget everything that waits."""
        for key in list(self._traces):
            self._drop(key)
        self._early.clear()

    def _drop(self, key: tuple[str, bytes]) -> list[SpanView]:
        writer, trace_id = key
        passed = self._passed[writer]
        passed[trace_id] = False
        if len(passed) > KEPT_PASSED:
            del passed[next(iter(passed))]
        trace = self._traces.pop(key, None)
        self._spans -= len(trace.spans) if trace else 0
        return trace.spans if trace else []

    def _give_up(self) -> None:
        """Make room; a step that is certainly complete is compared all the same."""
        key, trace = next(iter(self._traces.items()))
        spans = self._drop(key)
        if trace.container is None:
            self._passed[key[0]][key[1]] = True
        elif self._steps[key[0]] - trace.steps >= LAST_SPANS_STEPS and key[0] not in self._on_device:
            self._early += _compared_steps([(trace.container, spans)])
        else:
            self.overflown += 1


def _is_whole_step(container: SpanView) -> bool:
    """Whether it holds a step that no exception or death cut short."""
    is_cut = container.status_code == 2 or v.TRUNCATED in container.attributes
    return iteration_of(container.attributes) is not None and not is_cut


def _compared_steps(steps: Sequence[tuple[SpanView, Sequence[SpanView]]]) -> list[ComparedStep]:
    """Sum up steps, each a container and the other spans of its trace. Cost: 3 ms, and 5 us a span."""
    if not steps:
        return []
    import numpy as np

    from otel_rl.tables.calls import calls_of, split
    from otel_rl.tables.span_table import table_of_steps

    table = table_of_steps(steps)
    stages, within = table.stages, table.within
    other_ns = within.activities()[:, NO_STAGE].tolist()
    is_stage = (within.inside.level == 1) & ~within.column(stages.is_comm)
    counts = stages.direct[0][within.roots]
    np.add.at(counts, within.inside.root[is_stage], within.column(stages.total[0])[is_stage])
    shown = np.flatnonzero(stages.shows_waits & ~table.is_behind)
    in_idle = stages.forest.is_below(stages.is_idle)[shown].tolist()
    collectives: list[list[RankCollective]] = [[] for _ in steps]
    for row, is_idle in zip(stages.forest.order[shown].tolist(), in_idle, strict=True):
        collectives[int(table.step[row])].append(_collective(table.spans[row], is_idle=is_idle))
    return [
        ComparedStep(
            role=role_of(container.resource),
            rank=integer(container.resource, v.RANK),
            loop=text(container.attributes, v.LOOP_NAME),
            number=iteration_of(container.attributes) or 0,
            trace_id=container.trace_id,
            begin_ns=container.start_ns,
            end_ns=container.end_ns,
            other_ns=other,
            calls=calls,
            collectives=tuple(sorted(of_step, key=lambda one: one.begin_ns)),
            comm_count=count,
            resource=container.resource,
        )
        for (container, _), other, calls, of_step, count in zip(
            steps, other_ns, split(calls_of(within), len(steps)), collectives, counts.tolist(), strict=True
        )
    ]


def _collective(span: SpanView, *, is_idle: bool) -> RankCollective:
    """Return a collective whose durations show who waited."""
    attributes = span.attributes
    return RankCollective(
        text(attributes, v.COMM_OPERATION),
        text(attributes, v.COMM_GROUP),
        integer(attributes, v.COMM_GROUP_SIZE),
        integer(attributes, v.COMM_SEQUENCE),
        span.start_ns,
        max(0, span.end_ns - span.start_ns),
        span.span_id,
        span.parent_id,
        is_idle,
    )
