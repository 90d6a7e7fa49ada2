"""The steps that averages are made of: finished ones, tiled, without the first ones after set-up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.intervals import Interval, covered
from otel_rl.analysis.stages import Path
from otel_rl.analysis.steps import tile, warmup
from otel_rl.analysis.summary import quantile
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import LongStep, StepTimes
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.report.read.step_stages import StageInSteps, apart, in_steps
from otel_rl.runs.spans import NOT_TOLD, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.tables.forest import Ints, Seconds

LONG_RATIO: Final = 5.0
LONG_SHARE: Final = 0.1


@dataclass(frozen=True)
class Averaged:
    """Finished steps of all ranks, and those of them that averages use."""

    finished: Sequence[StepRecord]
    steady: Sequence[StepRecord]
    num_ranks: dict[str, int]

    @cached_property
    def median_ns(self) -> float:
        return quantile_of(np.sort(self.times), 0.5)

    @property
    def mean_ns(self) -> float:
        return self.time_ns / len(self.steady) if self.steady else 0.0

    @cached_property
    def times(self) -> Ints:
        """Return the times of the steady steps, ns."""
        return np.array([record.step.end_ns - record.step.begin_ns for record in self.steady], np.int64)

    @cached_property
    def time_ns(self) -> int:
        return sum(self.times.tolist())

    def wall_s(self) -> float:
        """Return the time in which a rank makes steps; those of several tasks may overlap."""
        steps: defaultdict[tuple[str, Rank], list[Interval]] = defaultdict(list)
        for record in self.steady:
            steps[record.attempt, record.rank].append((record.step.begin_ns, record.step.end_ns))
        return sum(covered(of_rank) / self.num_ranks[attempt] for (attempt, _), of_rank in steps.items()) / 1e9

    def share_of(self, path: Path) -> float:
        """Return the share of a stage in the time of these steps."""
        busy_ns = sum(record.stages.busy_of(path) for record in self.steady)
        return busy_ns / self.time_ns if self.time_ns else 0.0

    @cached_property
    def keys(self) -> set[StepKey]:
        """Return the finished steps, those of all ranks once."""
        return {record.key for record in self.finished}

    @cached_property
    def by_step(self) -> dict[StepKey, list[StepRecord]]:
        """Return the steady steps, those of all ranks together."""
        steps: defaultdict[StepKey, list[StepRecord]] = defaultdict(list)
        for record in self.steady:
            steps[record.key].append(record)
        return dict(steps)

    @cached_property
    def stages(self) -> dict[Path, StageInSteps]:
        """Return the stages of the steady steps: a run may have as many as samples, each of them in one step."""
        return in_steps([record.stages for record in self.steady])

    @cached_property
    def other(self) -> StageInSteps:
        """Return what is under no stage."""
        covered = np.array([record.covered_ns for record in self.steady], np.int64)
        times_ns = np.maximum(0, self.times - covered)
        zeros = np.zeros_like(times_ns)
        return StageInSteps(np.arange(len(times_ns)), times_ns, times_ns, times_ns, zeros, zeros)

    @cached_property
    def ranks(self) -> dict[Rank, int]:
        """Return the ranks that have steady steps, by number."""
        found: dict[Rank, int] = {}
        for record in self.steady:
            found.setdefault(record.rank, len(found))
        return found

    @cached_property
    def rank_of(self) -> Ints:
        """Return the number of the rank of each steady step."""
        return np.array([self.ranks[record.rank] for record in self.steady], np.int64)

    @cached_property
    def ranks_beside(self) -> NDArray[np.float64]:
        """Return how many ranks the attempt of each steady step has."""
        return np.array([self.num_ranks[record.attempt] for record in self.steady], float)

    def sums_by_rank(self, step: Ints, values: Ints) -> dict[Rank, int]:
        """Add up numbers of steady steps; ranks that have none are left out."""
        sums: dict[int, int] = {}
        for number, value in zip(self.rank_of[step].tolist(), values.tolist(), strict=True):
            sums[number] = sums.get(number, 0) + value
        return {rank: sums[number] for rank, number in self.ranks.items() if number in sums}


def stages_of_step(records: Iterable[StepRecord]) -> list[StepRecord]:
    """Return the steps whose stages tile the loop: all, but those in which a rank only gets calls."""
    return [record for record in records if not record.is_guest]


def of_ranks(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Return the steps of those that hold devices: all, but those of a driver that ranks get their calls from.

    A step that failed in its driver is whole on no rank.
    """
    called = {record.attempt for record in records if record.is_guest}
    failed = {record.key for record in records if record.is_truncated and not record.is_guest}
    return [
        record._replace(is_truncated=True) if record.key in failed else record
        for record in records
        if record.is_guest or record.attempt not in called
    ]


def average(records: Iterable[StepRecord]) -> Averaged:
    """Tile the steps of each rank and leave out what is no fair step: truncated ones, and the first after set-up."""
    groups: defaultdict[tuple[str, Rank], list[StepRecord]] = defaultdict(list)
    for record in records:
        groups[record.attempt, record.rank].append(record)
    finished: list[StepRecord] = []
    steady: list[StepRecord] = []
    num_ranks: defaultdict[str, int] = defaultdict(int)
    for (attempt, _), group in groups.items():
        group.sort(key=attrgetter("step"))
        tiled = tile([record.step for record in group])
        whole = [
            StepRecord(record.attempt, record.rank, step, *record[3:])  # a third of what ``_replace`` takes
            for record, step in zip(group, tiled, strict=True)
            if not record.is_truncated
        ]
        finished += whole
        steady += whole[warmup(len(whole)) :]
        num_ranks[attempt] += 1
    return Averaged(finished, steady, dict(num_ranks))


def step_times(averaged: Averaged) -> StepTimes:
    times_s = np.sort(averaged.times) / 1e9
    finished, steady = averaged.keys, averaged.by_step
    iterations = [record.step.iteration for record in averaged.finished]
    return StepTimes(
        recorded=len(finished),
        averaged=len(steady),
        warmup=len(finished) - len(steady),
        first=min(iterations, default=None),
        last=max(iterations, default=None),
        loops=max(Counter(attempt for attempt, _ in {key[:2] for key in finished}).values(), default=0),
        median_s=quantile_of(times_s, 0.5),
        p95_s=quantile_of(times_s, 0.95),
        total_s=sum((averaged.times / averaged.ranks_beside).tolist()) / 1e9,
    )


def quantile_of(ordered: Seconds, share: float) -> float:
    """Return a quantile of an array in ascending order; 0 of none."""
    return float(quantile(ordered, share)) if len(ordered) else 0.0


def set_aside(averaged: Averaged) -> tuple[Averaged, LongStep | None]:
    """Leave the one long step out, if there is one; two of them are no accident."""
    steps, median_ns = averaged.by_step, averaged.median_ns
    is_long = averaged.times.max(initial=0) >= LONG_RATIO * median_ns
    if not is_long or median_ns <= 0:  # clocks that stand still
        return averaged, None
    long = [key for key, records in steps.items() if _longest(records).step.time_ns >= LONG_RATIO * median_ns]
    if len(long) != 1 or sum(one.step.time_ns for one in steps[long[0]]) < LONG_SHARE * averaged.time_ns:
        return averaged, None
    record = _longest(steps[long[0]])
    busy_ns = apart((path, part.busy_ns) for path, part in record.stages.items())
    busy_ns[v.OTHER] = record.other_ns
    found = LongStep(
        step=record.step.iteration,
        time_s=record.step.time_ns / 1e9,
        ratio=record.step.time_ns / median_ns,
        stage=max(busy_ns, key=lambda stage: busy_ns[stage]),
    )
    others = [one for one in averaged.steady if one.key != long[0]]
    return replace(averaged, steady=others), found


def of_same_steps(ranks: Averaged, steps: Averaged) -> Averaged:
    """Leave those steps of ranks out of averages that are left out of another average."""
    keys = {record.key for record in steps.steady}
    return replace(ranks, steady=[record for record in ranks.steady if record.key in keys])


def _longest(records: Sequence[StepRecord]) -> StepRecord:
    return max(records, key=lambda record: record.step.time_ns)


def work_of_all(records: Sequence[StepRecord]) -> WorkSums | None:
    """Add up over ranks; of those that share samples the highest counts; None if one does not say with whom."""
    if not _is_sharing_known(records):
        return None
    shared: dict[tuple[StepKey, str, int, int], WorkSums] = {}
    for record in records:
        own = record.rank.rank if record.samples == UNKNOWN else UNKNOWN
        key = record.key, record.rank.role, record.samples, own
        shared[key] = shared.get(key, WorkSums()).most(record.work)
    return reduce(WorkSums.plus, shared.values(), WorkSums())


def _is_sharing_known(records: Sequence[StepRecord]) -> bool:
    """Return whether it is known, in each role and attempt, which ranks share samples.

    All have samples of their own, or all say with whom they share them.
    """
    found: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for record in records:
        found[record.attempt, record.rank.role].add(min(record.samples, 0))
    return all(len(kinds) == 1 and NOT_TOLD not in kinds for kinds in found.values())
