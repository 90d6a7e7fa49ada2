"""One pass over the spans of a run: steps, set-ups, memory peaks; what is kept grows with the steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from operator import itemgetter
from typing import Final

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import bubbles, reason_of
from otel_rl.analysis.goodput import Goodput
from otel_rl.analysis.intervals import Interval
from otel_rl.analysis.stage_calls import Key
from otel_rl.analysis.stages import Comm, SpanTree
from otel_rl.analysis.steps import Step
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import SpanView
from otel_rl.records import Value
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Failure
from otel_rl.report.read.containers import Bounds, Wall, skipped_calls, time_by_kind
from otel_rl.report.read.failures import PhaseFailure, failures_of_called, phase_failure, step_failure
from otel_rl.report.read.memory_course import MemoryGrowth, MemoryPeaks
from otel_rl.report.read.memory_readings import TraceMemory
from otel_rl.report.read.request_spans import RequestSpans
from otel_rl.report.read.single_controller.guest_steps import (
    TRAINING,
    has_container,
    is_driver,
    unwrapped,
    waits_of,
    with_container,
)
from otel_rl.report.read.single_controller.role_times import RoleTimes
from otel_rl.report.read.single_controller.shared_devices import SharedDevices
from otel_rl.report.read.single_controller.trajectories import TrajectorySpans
from otel_rl.report.read.span_attributes import ERROR, WorkSums, clock_set_ns, rank_of, work_in
from otel_rl.report.read.step_stages import PackedStages, Shapes
from otel_rl.runs.calls import Calls, Known, calls_in
from otel_rl.runs.spans import (
    UNKNOWN,
    call_of,
    in_front,
    integer,
    is_container,
    is_derived,
    is_request,
    iteration_of,
    nanoseconds,
    own_stages,
    place,
    rank_span,
    shares_samples,
    text,
)

PENDING_STEPS: Final = 4
"""So many traces of a writer stay open for spans that end after their container, as those of background work do."""
PENDING_NS: Final = 12_000_000_000
"""Others stay open this long: a stage that waits for its device is journaled up to 10 s and a cycle after its step."""
MOST_PENDING: Final = 256

GroupKey = tuple[str, bytes]
StepKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one rank."""

    attempt: str
    rank: Rank
    step: Step
    covered_ns: int
    activities: tuple[int, ...]
    """What this rank did, by ``ACTIVITIES``, ns: as the metric `rl.step.activity` says."""
    stages: PackedStages
    direct_comm: Comm
    work: WorkSums
    is_truncated: bool
    """Its writer died in it or an exception ended it, so its time is no step time."""
    calls: Calls
    bubbles: tuple[int, ...]
    """Waits of this rank by ``REASONS``, ns."""
    goodput: Goodput
    skipped: frozenset[Key] = frozenset()
    pipeline: int = UNKNOWN
    """The pipeline stage: peers share it; UNKNOWN where one rank of the role and attempt does not say its own."""
    samples: int = UNKNOWN
    """The data-parallel group whose ranks share their samples; UNKNOWN where this rank has its own, or NOT_TOLD."""
    is_open: bool = False
    """Its writer died in it, as far as is recorded; spans of steps that ended before it may be missing."""
    clock_set_ns: int = 0
    """By how much its process's wall clock had been set when it began; `step` is by the clock before that."""
    restart_of: str = ""
    cpu_ns: int | None = None
    """CPU time of the training thread; None if it is not known."""
    algorithm: str = ""
    model: str = ""
    is_guest: bool = False
    """It is the step of a driver, in which this rank only gets calls."""
    waits: tuple[Interval, ...] = ()
    """A driver waits for rollouts, a guest for its next call."""

    @property
    def other_ns(self) -> int:
        return max(0, self.step.time_ns - self.covered_ns)

    @property
    def key(self) -> StepKey:
        return self.attempt, self.step.loop, self.step.iteration


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of a rank."""

    name: str
    memory_limit: int
    """Bytes that all its processes have together; 0 if unknown."""
    device: str
    """The device of the rank, as its driver names it; empty if unknown."""


@dataclass(slots=True)
class FoldedSpans:
    """A run after one pass over its spans."""

    steps: list[StepRecord] = field(default_factory=list)
    """In order of their begins, each by the clock of its process as that began."""
    phases: dict[str, list[SpanView]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[str, Bounds] = field(default_factory=dict)
    ranks: dict[str, set[Rank]] = field(default_factory=lambda: defaultdict(set))
    worlds: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    writers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    holders: set[str] = field(default_factory=set)
    """Writers with a container of their own; the others are workers."""
    resources: dict[str, dict[str, Value]] = field(default_factory=lambda: defaultdict(dict))
    """By attempt: the attributes of all its processes together."""
    peaks: MemoryPeaks = field(default_factory=MemoryPeaks)
    growth: MemoryGrowth = field(default_factory=MemoryGrowth)
    hosts: dict[tuple[str, Rank], Host] = field(default_factory=dict)
    """Where each rank of an attempt runs."""
    failures: list[Failure] = field(default_factory=list)
    outside: list[PhaseFailure] = field(default_factory=list)
    """Exceptions in set-up and tear-down, in order of time."""
    longest_ns: dict[str, int] = field(default_factory=dict)
    """Longest finished call by ``call_of``."""
    walls: dict[tuple[str, Rank], Wall] = field(default_factory=dict)
    clock_set_ns: dict[str, int] = field(default_factory=dict)
    """By how much the wall clock of each writer had been set when its last container began."""
    set_in: set[str] = field(default_factory=set)
    """Attempts in which a clock was set; their times are those of containers, which alone say by how much."""
    clocks: dict[tuple[str, Rank], set[str]] = field(default_factory=lambda: defaultdict(set))
    """By attempt and rank: name and boot of the host, which identify its clock."""
    requests: RequestSpans = field(default_factory=RequestSpans)
    drivers: dict[bytes, SpanView] = field(default_factory=dict)
    """The containers of single controllers, by trace."""
    led: set[str] = field(default_factory=set)
    """Attempts with a single controller."""
    guests: set[tuple[str, Rank]] = field(default_factory=set)
    """By attempt: the ranks that only get calls of one."""
    roles: RoleTimes = field(default_factory=RoleTimes)
    trajectories: TrajectorySpans = field(default_factory=TrajectorySpans)

    def widen(self, attempt: str, bounds: Bounds) -> None:
        self.attempts.setdefault(attempt, replace(bounds)).widen(bounds.begin_ns, bounds.end_ns)

    def ended_outside(self, attempt: str) -> list[PhaseFailure]:
        """Return the exceptions that may have ended an attempt outside of its steps; one that has steps went on."""
        has_steps = any(record.attempt == attempt for record in self.steps)
        return [one for one in self.outside if one.attempt == attempt and (one.is_end or not has_steps)]

    def know(self, resource: Mapping[str, Value], writer: WriterIdentity) -> None:
        attempt, rank = text(resource, v.ATTEMPT_ID), rank_of(resource)
        self.ranks[attempt].add(rank)
        self.worlds[attempt, rank.role] = max(self.worlds[attempt, rank.role], integer(resource, v.WORLD_SIZE))
        self.clocks[attempt, rank] |= {text(resource, v.HOST_NAME), writer.boot_id} - {""} or {""}
        self.hosts[attempt, rank] = Host(
            text(resource, v.HOST_NAME), integer(resource, v.MEMORY_LIMIT), text(resource, v.HW_ID)
        )
        self.writers[attempt].add(writer.writer)
        self.resources[attempt].update(resource)


def collect(spans: Iterable[SpanView]) -> FoldedSpans:
    """Fold the spans of a run: finished ones and those closed for dead writers, roughly in order of their ends."""
    collector = _Collector()
    for span in spans:
        collector.add(span)
    return collector.finish()


def _is_below_setup(container: SpanView) -> bool:
    return container.parent_id == ids.root_id(text(container.resource, v.ATTEMPT_ID), v.SETUP, 0).to_bytes(8, "big")


class _Collector:
    def __init__(self) -> None:
        self._found = FoldedSpans()
        self._groups: defaultdict[GroupKey, list[SpanView]] = defaultdict(list)
        self._pending: defaultdict[str, dict[bytes, int]] = defaultdict(dict)
        """By writer: its traces that have a container, and the end of that."""
        self._writer = ""  # of the last span: journals are read one after the other
        self._known: set[tuple[str, int]] = set()
        self._stepped: dict[str, int] = {}
        self._shared = Known()
        self._shapes: Shapes = {}
        self._failed: list[tuple[int, Failure]] = []
        self._bounds: dict[str, Bounds] = {}
        """By attempt: the bounds of its records, whether a clock was set or not."""
        self._training: set[str] = set()
        """Writers that train in the steps of a driver."""
        self._lent: set[GroupKey] = set()
        self._errors: list[SpanView] = []
        """Spans that failed in processes that are called."""
        self._shared_devices = SharedDevices()
        self._is_driver = False

    def add(self, span: SpanView) -> None:
        if is_derived(span):
            return  # it lies over a collective that is here already, and its writer, the sidecar, is no rank
        writer = span.journal.identity.writer
        self._add_writer(span)
        if is_request(span):
            self._found.requests.add(span)
            return
        if writer != self._writer:
            self._close_pending(self._writer, PENDING_STEPS)
            self._writer, self._is_driver = writer, is_driver(span)
        self._groups[writer, span.trace_id].append(span)
        if not is_container(span.name):
            if self._is_driver:
                self._shared_devices.add(span)
            elif self._found.drivers:
                self._add_worker(span)
            return
        if self._is_driver:
            self._found.drivers[span.trace_id] = span
            self._found.led.add(text(span.resource, v.ATTEMPT_ID))
            self._found.trajectories.add_step(span)
        self._found.holders.add(writer)
        end_ns = self._pending[writer][span.trace_id] = span.end_ns - clock_set_ns(span)
        self._close_pending(writer, MOST_PENDING, end_ns - PENDING_NS)

    def _add_worker(self, span: SpanView) -> None:
        """Add what a process recorded that is no driver, and may have no container; the driver's are read before."""
        writer, driver = span.journal.identity.writer, self._found.drivers.get(span.trace_id)
        if span.name in TRAINING:
            self._training.add(writer)
        if span.status_code == ERROR:
            self._errors.append(span)
        if driver is None or v.ITERATION in driver.attributes:
            self._found.roles.add(span)
        if span.name == v.TRAJECTORY:
            self._found.trajectories.add(span)
        self._shared_devices.add(span)
        end_ns = span.end_ns if driver is None else driver.end_ns
        self._pending[writer].setdefault(span.trace_id, end_ns)
        self._close_pending(writer, MOST_PENDING, end_ns - PENDING_NS)

    def _close_pending(self, writer: str, most: int, ended_ns: int = 0) -> None:
        """Close traces of a writer, the oldest first: all but ``most``, and those that ended before ``ended_ns``."""
        pending = self._pending[writer]
        while len(pending) > PENDING_STEPS:
            trace, end_ns = next(iter(pending.items()))
            if len(pending) <= most and end_ns >= ended_ns:
                break
            del pending[trace]
            self._close((writer, trace))

    def finish(self) -> FoldedSpans:
        for key in list(self._groups):
            self._close(key)
        for attempt, bounds in self._bounds.items():
            if attempt not in self._found.set_in:
                self._found.widen(attempt, bounds)
        self._found.growth.finish()
        steps = map(self._of_use, _with_peers(self._found.steps))
        self._found.steps = sorted(steps, key=lambda record: record.step)
        self._failed += failures_of_called(self._errors, self._found.trajectories.step_of)
        self._found.failures = [failure for _, failure in sorted(self._failed, key=itemgetter(0))]
        self._found.outside.sort(key=lambda failure: failure.end_ns)
        self._found.attempts = dict(sorted(self._found.attempts.items(), key=lambda item: item[1].begin_ns))
        return self._found

    def _as_guest(self, step: StepRecord, container: SpanView, inside: Sequence[SpanView]) -> StepRecord:
        """Return a step of a rank that is called, with the stages inside its update as calls of their own."""
        container, spans = unwrapped(container, inside)
        tree = SpanTree(map(rank_span, in_front(spans)))
        return replace(step, is_guest=True, calls=calls_in(rank_span(container), tree, spans, self._shared))

    def _of_use(self, record: StepRecord) -> StepRecord:
        """Return a step of a guest with what rollout servers did on its device meanwhile."""
        if not record.is_guest:
            return record
        host = self._found.hosts[record.attempt, record.rank].name
        parts = self._shared_devices.with_rollouts(record.goodput, record.waits, record.attempt, host)
        return replace(record, goodput=parts)

    def _add_writer(self, span: SpanView) -> None:
        found, attempt = self._found, text(span.resource, v.ATTEMPT_ID)
        self._bounds.setdefault(attempt, Bounds(span.start_ns, span.end_ns)).widen(span.start_ns, span.end_ns)
        if v.TRUNCATED not in span.attributes:
            call = call_of(span.name, span.attributes)
            found.longest_ns[call] = max(found.longest_ns.get(call, 0), span.end_ns - span.start_ns)
        known = (span.journal.identity.writer, id(span.resource))  # a writer shares one object among its records
        if known not in self._known:
            self._known.add(known)
            found.know(span.resource, span.journal.identity)

    def _close(self, key: GroupKey) -> None:
        spans, is_guest = self._of_trace(key)
        containers = [span for span in spans if is_container(span.name)]
        set_ns = max(map(clock_set_ns, containers), key=abs, default=0)
        if containers:
            self._found.clock_set_ns[key[0]] = set_ns
        if set_ns:
            self._found.set_in.add(text(spans[0].resource, v.ATTEMPT_ID))
            spans = [span._replace(start_ns=span.start_ns - set_ns, end_ns=span.end_ns - set_ns) for span in spans]
            containers = [span for span in spans if is_container(span.name)]
        tree = SpanTree(map(rank_span, in_front(spans)))
        iteration = next((number for span in containers if (number := iteration_of(span.attributes)) is not None), None)
        begun_ns = min((span.start_ns for span in containers), default=0)
        is_later = begun_ns >= self._stepped.get(key[0], inf)
        if containers and iteration is None:  # also where the journal has the end of a short process before its steps
            is_later = not any(map(_is_below_setup, containers))
        phase = v.TEARDOWN if is_later else v.SETUP
        for span in spans:
            if span.name in (v.SETUP, v.TEARDOWN) or (is_container(span.name) and iteration is None):
                self._found.phases[text(span.resource, v.ATTEMPT_ID)].append(span)
        if spans:
            driver = self._found.drivers.get(key[1])
            number = iteration if driver is None else iteration_of(driver.attributes)
            memory = TraceMemory(spans, phase, number)
            self._found.peaks.add(memory)
            self._found.growth.add(memory, number if containers or driver is not None else self._step_of(spans))
            failure = phase_failure(phase, spans) if number is None and (containers or driver is not None) else None
            self._found.outside += [failure] if failure is not None else []
        for container in containers:
            below = {child.key for child in tree.below(container.span_id)}
            inside = [span for span in spans if span.span_id in below]
            time = self._spend(container, inside, is_step=iteration is not None)
            if iteration is not None:
                self._stepped[key[0]] = min(begun_ns, self._stepped.get(key[0], begun_ns))
                step = self._step(container, iteration, tree, inside, time)
                self._found.steps.append(self._as_guest(step, container, inside) if is_guest else step)
                if container.status_code == ERROR:
                    self._failed.append((container.end_ns, step_failure(container, iteration, spans)))

    def _step_of(self, spans: Sequence[SpanView]) -> int | None:
        """Return the step in which a rollout ended that has a trace of its own; None without a driver."""
        if not self._found.drivers:
            return None
        key = self._found.trajectories.step_of(max(spans, key=lambda span: span.end_ns))
        return None if key is None else key[2]

    def _of_trace(self, key: GroupKey) -> tuple[list[SpanView], bool]:
        """Return the stages of a process in a trace, and whether it is a guest there: then with a container."""
        spans = list(own_stages(self._groups.pop(key, [])))
        driver = self._found.drivers.get(key[1])
        if driver is None or key[0] not in self._training or key in self._lent or has_container(spans) or not spans:
            return spans, False
        self._lent.add(key)
        self._found.guests.add((text(spans[0].resource, v.ATTEMPT_ID), rank_of(spans[0].resource)))
        return with_container(spans, driver), True

    def _spend(self, container: SpanView, inside: list[SpanView], *, is_step: bool) -> Goodput:
        key = text(container.resource, v.ATTEMPT_ID), rank_of(container.resource)
        begin_ns, end_ns = container.start_ns, max(container.start_ns, container.end_ns)
        wall = self._found.walls.setdefault(key, Wall(begin_ns, end_ns))
        wall.widen(begin_ns, end_ns)
        self._found.widen(key[0], Bounds(begin_ns, end_ns))
        parts = time_by_kind(container, inside, is_step=is_step)
        if not is_step:
            wall.phases.append(((begin_ns, end_ns), parts))
        return parts

    def _step(
        self, container: SpanView, iteration: int, tree: SpanTree, inside: list[SpanView], goodput: Goodput
    ) -> StepRecord:
        evaluation = {span.span_id for span in inside if span.name == v.EVALUATE}
        inside_evaluation = {child.key for key in evaluation for child in tree.below(key)}
        is_open = container.attributes.get(v.TRUNCATED) is True
        whole = rank_span(container)
        return StepRecord(
            attempt=text(container.resource, v.ATTEMPT_ID),
            rank=rank_of(container.resource),
            step=Step(container.start_ns, container.end_ns, text(container.attributes, v.LOOP_NAME), iteration),
            covered_ns=tree.covered_ns(whole),
            activities=tree.activities(whole),
            stages=PackedStages(tree.slices(whole), self._shapes),
            direct_comm=tree.direct_comm(whole),
            work=work_in(span for span in inside if span.span_id not in inside_evaluation),
            is_truncated=is_open or container.status_code == ERROR,
            calls=calls_in(whole, tree, inside, self._shared),
            bubbles=_bubbles(container, inside),
            goodput=goodput,
            skipped=skipped_calls(container, inside),
            pipeline=place(container.resource, v.RANK_PP),
            samples=shares_samples(container.resource),
            is_open=is_open,
            clock_set_ns=clock_set_ns(container),
            restart_of=text(container.attributes, v.LOOP_RESTART_OF),
            cpu_ns=nanoseconds(container.attributes.get(v.CPU_TIME)),
            algorithm=text(container.attributes, v.ALGORITHM) or text(container.resource, v.ALGORITHM),
            model=text(container.attributes, v.MODEL_NAME) or text(container.resource, v.MODEL_NAME),
            waits=waits_of(container, inside) if self._found.drivers else (),
        )


def _with_peers(records: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Forget the pipeline stages of a role and attempt if not all of its ranks say theirs."""
    unsaid = {(record.attempt, record.rank.role) for record in records if record.pipeline == UNKNOWN}
    for record in records:
        is_unsaid = (record.attempt, record.rank.role) in unsaid
        yield replace(record, pipeline=UNKNOWN) if is_unsaid and record.pipeline != UNKNOWN else record


def _bubbles(container: SpanView, inside: list[SpanView]) -> tuple[int, ...]:
    waits: dict[str, list[Interval]] = {}
    for span in inside:
        if span.name == v.IDLE:
            reason = reason_of(text(span.attributes, v.IDLE_REASON))
            waits.setdefault(reason, []).append((span.start_ns, span.end_ns))
    return bubbles((container.start_ns, container.end_ns), waits)
