"""The trajectories of a run by the driver's steps: how many, how long, and for which of them a step waits."""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import takewhile
from typing import Final, NamedTuple

from otel_rl import vocabulary as v
from otel_rl.analysis.intervals import Interval, clip, covered, merge
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.read.span_attributes import ERROR, WorkSums, rank_of, sampled
from otel_rl.runs.spans import iteration_of, text

KEYS: Final = (v.GROUP_ID, v.SAMPLE_ID, v.SYNC_OPERATION)
MOST_LATEST: Final = 16
MOST_APART: Final = 4096
"""So many intervals are kept before those that touch are joined."""


class Trajectory(NamedTuple):
    """One trajectory; the one that ends later is the greater."""

    end_ns: int
    begin_ns: int
    sample: str
    group: str
    span_id: bytes
    trace_id: bytes

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.begin_ns


class Union:
    """Intervals, joined where they touch."""

    def __init__(self) -> None:
        self._intervals: list[Interval] = []
        self._limit = MOST_APART

    def add(self, interval: Interval) -> None:
        self._intervals.append(interval)
        if len(self._intervals) > self._limit:
            self._limit = MOST_APART + len(self.merged())

    def merged(self) -> list[Interval]:
        self._intervals = merge(self._intervals)
        return self._intervals


@dataclass(slots=True)
class StepRollouts:
    """The trajectories that ended in one step of the driver."""

    work: WorkSums = field(default_factory=WorkSums)
    going_on: Union = field(default_factory=Union)
    latest: list[Trajectory] = field(default_factory=list)
    """The trajectories that ended last, as a heap."""
    hosts: set[str] = field(default_factory=set)

    def add(self, one: Trajectory, work: WorkSums, host: str) -> None:
        self.work = self.work.plus(work)
        self.going_on.add((one.begin_ns, one.end_ns))
        self.hosts.add(host)
        add = heappush if len(self.latest) < MOST_LATEST else heappushpop
        add(self.latest, one)

    def held(self, waits: Sequence[Interval], long_ns: float) -> tuple[int, list[Trajectory]]:
        """Return how long the driver waited after all but long ones had ended, and these, the last first."""
        ordered = sorted(self.latest, reverse=True)
        long = list(takewhile(lambda one: one.duration_ns >= long_ns, ordered))
        if not long or len(long) == len(ordered) or len(self.hosts) != 1:
            return 0, []
        return covered(clip(waits, ordered[len(long)].end_ns, long[0].end_ns)), long

    def late_ns(self, waits: Sequence[Interval]) -> int:
        """Return how long the driver waited at the end of its waits, after those that had begun before had ended."""
        ends = self.going_on.merged()
        late_ns = 0
        for begin_ns, end_ns in waits:
            place = bisect_right(ends, (end_ns, 0)) - 1  # the last interval that begins before this wait ends
            if place >= 0:
                late_ns += max(0, end_ns - max(begin_ns, ends[place][1]))
        return late_ns


class TrajectorySpans:
    """What agent loops recorded. Keeps 8 bytes of each trajectory, an id of each group, some intervals of each step."""

    def __init__(self) -> None:
        self.durations = array("d")
        """Seconds of each trajectory of the training."""
        self.evaluated = 0
        self.groups: set[str] = set()
        """The named groups of the training, also those of which nothing came."""
        self.nameless = 0
        """Trajectories of the training whose group has no name."""
        self.longest: Trajectory | None = None
        self.steps: defaultdict[StepKey, StepRollouts] = defaultdict(StepRollouts)
        self.works: defaultdict[Rank, WorkSums] = defaultdict(WorkSums)
        """By process."""
        self._unplaced: list[tuple[Trajectory, WorkSums, str, str]] = []
        """Those that ended in no step that is known, each with its attempt and host."""
        self._begins: defaultdict[str, list[tuple[int, int, StepKey]]] = defaultdict(list)
        """By attempt: begin and end of the driver's steps, in order of time."""
        self._traces: dict[bytes, StepKey] = {}
        self._hosts: dict[str, str] = {}
        """By attempt: that of its driver."""

    def add_step(self, container: SpanView) -> None:
        """Add a step of the driver; steps come before the trajectories."""
        attempt, number = text(container.resource, v.ATTEMPT_ID), iteration_of(container.attributes)
        if number is not None:
            key = attempt, text(container.attributes, v.LOOP_NAME), number
            self.add_times(key, container.start_ns, container.end_ns, text(container.resource, v.HOST_NAME))
            self._traces[container.trace_id] = key

    def add_times(self, key: StepKey, begin_ns: int, end_ns: int, host: str) -> None:
        """Add when a step was, by the clock of a host."""
        insort(self._begins[key[0]], (begin_ns, end_ns, key))  # journals have any order
        self._hosts[key[0]] = host

    def add_group(self, span: SpanView) -> bool:
        """Add the group of a trajectory; return False for one of an evaluation."""
        is_trained, group = text(span.attributes, v.MODE) != "eval", text(span.attributes, v.GROUP_ID)
        if is_trained and group:
            self.groups.add(group)
        return is_trained

    def add(self, span: SpanView) -> None:
        if not self.add_group(span):
            self.evaluated += 1
        elif span.status_code != ERROR and v.TRUNCATED not in span.attributes:
            self._add_trained(span)

    def _add_trained(self, span: SpanView) -> None:
        sample, group = text(span.attributes, v.SAMPLE_ID), text(span.attributes, v.GROUP_ID)
        one = Trajectory(span.end_ns, span.start_ns, sample, group, span.span_id, span.trace_id)
        self.durations.append(one.duration_ns / 1e9)
        self.nameless += not group
        if self.longest is None or one.duration_ns > self.longest.duration_ns:
            self.longest = one
        rank, work = rank_of(span.resource), sampled(span.attributes, 1)
        self.works[rank] = self.works[rank].plus(work)
        self._unplaced.append((one, work, text(span.resource, v.ATTEMPT_ID), text(span.resource, v.HOST_NAME)))

    def place(self) -> None:
        """Add trajectories to the steps in which they ended; a step is known when it has ended."""
        unplaced, self._unplaced = self._unplaced, []
        for one, work, attempt, host in unplaced:
            key = self._step_of(attempt, host, one.end_ns, one.trace_id)
            if key is not None:
                self.steps[key].add(one, work, host)
            elif not self._begins[attempt] or self._begins[attempt][-1][1] < one.end_ns:
                self._unplaced.append((one, work, attempt, host))

    def step_of(self, span: SpanView) -> StepKey | None:
        """Return the step of its driver in which a span ended; by another clock, the one whose trace it is in."""
        resource = span.resource
        return self._step_of(text(resource, v.ATTEMPT_ID), text(resource, v.HOST_NAME), span.end_ns, span.trace_id)

    def _step_of(self, attempt: str, host: str, end_ns: int, trace_id: bytes) -> StepKey | None:
        if host != self._hosts.get(attempt):
            return self._traces.get(trace_id)
        steps = self._begins[attempt]
        place = bisect_right(steps, end_ns, key=lambda step: step[0]) - 1
        return steps[place][2] if place >= 0 and end_ns <= steps[place][1] else None

    def is_by_its_clock(self, key: StepKey) -> bool:
        """Return whether all trajectories of a step were timed by the clock of its driver."""
        return self.steps[key].hosts == {self._hosts.get(key[0], "")}
