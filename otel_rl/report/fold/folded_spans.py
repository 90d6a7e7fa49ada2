"""What is kept of the spans of a run: steps, set-ups, memory; it grows with the steps."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.bubbles import REASONS
from otel_rl.analysis.goodput import ACTIVITIES, Goodput
from otel_rl.analysis.intervals import Interval
from otel_rl.analysis.stages import Comm
from otel_rl.analysis.steps import Step
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import SpanView
from otel_rl.records import Value
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import Failure
from otel_rl.report.read.containers import Bounds, Wall
from otel_rl.report.read.failures import PhaseFailure
from otel_rl.report.read.memory_course import MemoryGrowth, MemoryPeaks
from otel_rl.report.read.request_spans import RequestSpans
from otel_rl.report.read.single_controller.guest_steps import DRIVER, is_driver
from otel_rl.report.read.single_controller.role_times import RoleTimes
from otel_rl.report.read.single_controller.trajectories import TrajectorySpans
from otel_rl.report.read.span_attributes import ERROR, WorkSums, rank_of
from otel_rl.report.read.step_stages import PackedStages
from otel_rl.runs.spans import (
    UNKNOWN,
    integer,
    text,
)
from otel_rl.tables.calls import Calls
from otel_rl.tables.peers import CallKey

if TYPE_CHECKING:
    from otel_rl.tables.forest import Ints


ENDS: Final = tuple(accumulate((len(ACTIVITIES), len(REASONS), len(Goodput._fields), len(WorkSums._fields))))
DID, WAITED, GOODPUT, WORK = (slice(*bounds) for bounds in pairwise((0, *ENDS)))
"""Where the parts of ``StepSums`` stand when it is packed."""


class StepSums(NamedTuple):
    """What is added up over steps: numbers of one, or arrays of many."""

    activities: Ints
    """What the rank did, by ``ACTIVITIES``, ns: as the metric `rl.step.activity` says."""
    bubbles: Ints
    """Its waits by ``REASONS``, ns."""
    goodput: Goodput
    work: WorkSums

    def pack(self) -> bytes:
        return array("q", (*self.activities, *self.bubbles, *self.goodput, *self.work)).tobytes()


class StepRecord(NamedTuple):
    """One step of one rank."""

    attempt: str
    rank: Rank
    step: Step
    covered_ns: int
    sums: bytes
    """``StepSums``, packed: as objects they take 1 KB, and each of them has to be looked for in memory."""
    stages: PackedStages
    direct_comm: Comm
    is_truncated: bool
    """Its writer died in it or an exception ended it, so its time is no step time."""
    number: int
    """Number of the step in ``FoldedSpans.calls``, where it is the ``rank_step`` of its calls."""
    skipped: frozenset[CallKey] = frozenset()
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
    def goodput(self) -> Goodput:
        return Goodput(*array("q", self.sums)[GOODPUT])

    @property
    def work(self) -> WorkSums:
        return WorkSums(*array("q", self.sums)[WORK])

    @property
    def other_ns(self) -> int:
        return max(0, self.step.time_ns - self.covered_ns)

    @property
    def key(self) -> StepKey:
        return self.attempt, self.step.loop, self.step.iteration


def sums_of(records: Sequence[StepRecord]) -> StepSums:
    """Return the sums of steps as arrays."""
    columns = np.frombuffer(b"".join([record.sums for record in records]), np.int64).reshape(-1, ENDS[-1]).T
    return StepSums(columns[DID], columns[WAITED], Goodput(*columns[GOODPUT]), WorkSums(*columns[WORK]))


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
    calls: list[Calls] = field(default_factory=list)
    """The calls of all steps; ``rank_step`` is the number of the record."""
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
    failed_calls: set[Failure] = field(default_factory=set)
    """The failures of called processes and of rollouts in a driver's own process. They may end no step."""
    survived: set[Failure] = field(default_factory=set)
    """The failed calls after which the driver's step went on."""
    passed_on: set[Failure] = field(default_factory=set)
    """The failed calls that ended a driver's step, which knows them by another exception."""
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

    def place_by_ranks(self) -> None:
        """Let what is in no rank's steps be placed by those of the first rank of each loop: there is no driver."""
        first: dict[tuple[str, str], Rank] = {}
        for record in self.steps:
            loop = record.attempt, record.step.loop
            first[loop] = min(first.get(loop, record.rank), record.rank)
        for record in self.steps:
            if record.rank == first[record.attempt, record.step.loop]:
                host = self.hosts[record.attempt, record.rank].name
                self.trajectories.add_times(record.key, record.step.begin_ns, record.step.end_ns, host)

    def ended_outside(self, attempt: str) -> list[PhaseFailure]:
        """Return the exceptions that may have ended an attempt outside of its steps; one that has steps went on.

        Whatever ended the processes that a driver calls, its own tear-down says that the attempt ended well.
        """
        has_steps = any(record.attempt == attempt for record in self.steps)
        outside = [one for one in self.outside if one.attempt == attempt and (one.is_end or not has_steps)]
        ends = [one for one in self.phases.get(attempt, ()) if one.name == v.TEARDOWN and is_driver(one)]
        is_well = bool(ends) and all(one.status_code != ERROR for one in ends)
        return [one for one in outside if one.rank.role == DRIVER] if is_well else outside

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


def with_peers(records: Sequence[StepRecord]) -> Iterator[StepRecord]:
    """Forget the pipeline stages of a role and attempt if not all of its ranks say theirs."""
    unsaid = {(record.attempt, record.rank.role) for record in records if record.pipeline == UNKNOWN}
    for record in records:
        is_told = record.pipeline != UNKNOWN
        yield record._replace(pipeline=UNKNOWN) if is_told and (record.attempt, record.rank.role) in unsaid else record
