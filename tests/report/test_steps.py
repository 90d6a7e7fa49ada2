"""What made-up steps give: who is slow, which step is left aside, how collectives are counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Comm, StageTimes
from otel_rl.analysis.steps import Step
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import BalanceRow, CommRow, LongStep, RankComm
from otel_rl.report.fold.folded_spans import FoldedSpans, StepRecord, StepSums
from otel_rl.report.read.average import Averaged, average, set_aside
from otel_rl.report.read.containers import NOTHING as NO_TIME
from otel_rl.report.read.span_attributes import WorkSums
from otel_rl.report.read.step_stages import PackedStages, Shapes, in_steps
from otel_rl.report.rows.balance import balance_rows, comm_rows
from otel_rl.report.rows.efficiency import efficiency
from otel_rl.report.rows.stage_rows import stage_rows
from tests.tables.made import StageCall, calls_of_steps

MS = 1_000_000
NOTHING = Comm(0, 0)


def averaged(*ranks: Sequence[float], comm: Comm = NOTHING) -> Averaged:
    """Make steps of 100 ms or more, each with as many milliseconds of rewards as are given; 0 for no such stage.

    The first two are set-up's, so they are added.
    """
    records: list[StepRecord] = []
    for rank, rewards_ms in enumerate(ranks):
        now_ns = 0
        for number, ms in enumerate([10.0, 10.0, *rewards_ms], start=1):
            time_ns = round(max(100.0, ms) * MS)
            reward = StageTimes((round(ms * MS),), round(ms * MS), round(ms * MS), NOTHING, False, False)
            slices = {(v.REWARD,): reward} if ms else {}
            step = Step(now_ns, now_ns + time_ns, "train", number)
            records.append(record(rank, step, slices, comm, len(records)))
            now_ns += time_ns
    return average(records)


def record(
    rank: int, step: Step, slices: dict[tuple[str, ...], StageTimes], comm: Comm = NOTHING, number: int = 0
) -> StepRecord:
    """Make a step of a rank in which everything lies under stages."""
    return StepRecord(
        attempt="a",
        rank=Rank("trainer", rank),
        step=step,
        covered_ns=step.time_ns,
        sums=StepSums((0, 0, 0, step.time_ns, 0), (0, 0, 0, 0, 0), NO_TIME, WorkSums()).pack(),
        stages=PackedStages(slices, {}),
        direct_comm=comm,
        is_truncated=False,
        number=number,
    )


def rewards(steps: Averaged) -> BalanceRow:
    """Compare the ranks in their rewards."""
    calls: list[list[StageCall]] = [[] for _ in range(1 + max(one.number for one in steps.finished))]
    for one in steps.finished:
        calls[one.number] = [
            StageCall(0, one.rank.rank, stage, times.busy_ns) for (stage,), times in one.stages.items()
        ]
    slow = efficiency(FoldedSpans(calls=[calls_of_steps(calls)]), steps).stragglers
    return balance_rows(steps, stage_rows(steps), slow)[0]


def test_own_time_is_a_median() -> None:
    """One long step makes no rank slow: its mean is ten times that of the other."""
    found = rewards(averaged([10.0] * 9, [10.0] * 8 + [990.0]))
    assert ([0.01, 0.01], None) == ([one.own_s for one in found.own], found.straggler)


@pytest.mark.parametrize(("every", "excess_s", "is_slow"), [(1, 0.05, True), (2, 0.025, True), (30, 0.05 / 30, False)])
def test_a_stage_that_is_rare_costs_less(every: int, excess_s: float, is_slow: bool) -> None:
    """50 ms in some steps only are that part of it in the mean; from 2 % of the step time a rank is named."""
    times_ms = [[ms if number % every == 0 else 0.0 for number in range(30)] for ms in (10.0, 60.0)]
    found = rewards(averaged(*times_ms))
    assert (pytest.approx(excess_s), is_slow) == (found.excess_s, found.straggler is not None)
    assert [0.01, 0.06] == [one.own_s for one in found.own]


def test_ranks_that_tie_are_named_together() -> None:
    """The first of them is the one with the lowest number."""
    found = rewards(averaged(*[[ms] * 9 for ms in (10.0, 10.0, 30.0, 10.0, 29.9)]))
    assert (Rank("trainer", 2), [Rank("trainer", 4)]) == (found.straggler, found.tied)


def test_one_long_step_is_left_aside() -> None:
    """It took 5 times the median and a tenth of all time."""
    steps = averaged([10.0] * 9 + [800.0])
    fair, found = set_aside(steps)
    assert LongStep(step=12, time_s=0.8, ratio=8.0, stage=v.REWARD) == found
    assert (10, 9) == (len(steps.steady), len(fair.steady))


def test_steps_without_time_leave_nothing_aside() -> None:
    """A clock may stand still."""
    steps = average([record(0, Step(0, 0, "train", 1), {})])
    assert (steps, None) == set_aside(steps)


@pytest.mark.parametrize("rewards_ms", [[10.0] * 8 + [800.0] * 2, [10.0] * 9 + [490.0], [10.0] * 99 + [800.0]])
def test_long_steps_that_stay(rewards_ms: list[float]) -> None:
    """Two of them, one below 5 times the median, and one that is little of a long run."""
    steps = averaged(rewards_ms)
    assert (steps, None) == set_aside(steps)


def test_all_collectives_under_no_stage_count() -> None:
    """Only the longest of them are spans, the container knows of all."""
    steps = averaged([10.0] * 9, comm=Comm(40, 8 * MS))
    expected = CommRow(stage=v.COMM, ranks=[RankComm(role="trainer", rank=0, count=40.0, time_s=0.008)])
    assert [expected] == comm_rows(steps, stage_rows(steps))


def test_stages_of_many_steps_are_those_of_each() -> None:
    """Whether steps have the same stages or other ones; the arrays of a stage hold nothing of another."""
    a, b, c = ("a",), ("a", "b"), ("c",)
    steps = [
        {a: StageTimes((1, 2), 3, 2, Comm(1, 5), False, True, True), c: StageTimes((), 0, -1, NOTHING, False, False)},
        {c: StageTimes((9,), 9, 8, NOTHING, False, False, True)},
        {},
        {
            a: StageTimes((4, 5, 6), 15, 14, NOTHING, False, False, True),
            b: StageTimes((7,), 7, 6, NOTHING, True, False),
        },
        {a: StageTimes((8,), 8, 8, Comm(2, 3), False, False, True), c: StageTimes((3, 3), 6, 5, NOTHING, False, False)},
    ]
    shapes: Shapes = {}
    found = {
        path: (*(one.tolist() for one in part[:6]), *part[6:])
        for path, part in in_steps([PackedStages(one, shapes) for one in steps]).items()
    }
    expected = {
        a: ([0, 3, 4], [1, 2, 4, 5, 6, 8], [3, 15, 8], [2, 14, 8], [1, 0, 2], [5, 0, 3], False, True, True),
        b: ([3], [7], [7], [6], [0], [0], True, False, False),
        c: ([0, 1, 4], [9, 3, 3], [0, 9, 6], [-1, 8, 5], [0, 0, 0], [0, 0, 0], False, False, False),
    }
    assert (expected, {}) == (found, in_steps([]))
