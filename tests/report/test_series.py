"""Numbers of every step, lined up over the ranks."""

from __future__ import annotations

import math
import tracemalloc
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import mean
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import Journal, PointView, open_run
from otel_rl.records import Attributes
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Series
from otel_rl.report.findings.unmade import Making
from otel_rl.report.reading import read_run
from otel_rl.report.rows.series import SeriesPoints
from otel_rl.report.source import Source
from tests.made_runs import BEGIN_NS, Plan, write_run


def series(root: Path, name: str, plan: Plan | None = None, **qualifiers: str) -> Series:
    """Find a series of a run by its name and attributes."""
    report = build_report(open_run(write_run(root, plan)), BEGIN_NS)
    return next(one for one in report.series if one.name == name and qualifiers.items() <= one.qualifiers.items())


def test_ranks_are_averaged_by_step(tmp_path: Path) -> None:
    """Rank 1 reports a loss that is higher by 1."""
    loss = series(tmp_path, v.LOSS)
    assert list(range(1, 13)) == loss.steps
    assert pytest.approx([1 / number + 0.5 for number in range(1, 13)]) == loss.values
    assert {} == loss.qualifiers


def test_a_maximum_over_ranks_is_no_mean(tmp_path: Path) -> None:
    """Of maxima the largest counts."""
    assert pytest.approx(0.3) == series(tmp_path, v.RESPONSE_MAX).first


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    """Both ranks reported NaN in step 7: the step has no value, the count says 2."""
    loss = series(tmp_path, v.LOSS, Plan(nan_loss_step=7))
    assert (2, None) == (loss.nonfinite, loss.values[6])


def test_ends_and_extremes_are_of_finite_values(tmp_path: Path) -> None:
    """A NaN at the end is the last value, so there is none."""
    loss = series(tmp_path, v.LOSS, Plan(nan_loss_step=12))
    assert (pytest.approx((1.5, 1 / 11 + 0.5, 1.5)), None) == ((loss.first, loss.low, loss.high), loss.last)


def test_values_of_single_ranks_are_kept_where_some_are_not_finite(tmp_path: Path) -> None:
    """As recorded, for what judges the ranks; of numbers that are all finite none is kept."""
    run = open_run(write_run(tmp_path, Plan(nan_loss_step=7)))
    source = Source(run, BEGIN_NS, read_run(run))
    found = source.points.numbers.of_ranks(source.found.steps, source.making)
    assert [(v.LOSS, 0), (v.LOSS, 1)] == [(one.name, one.rank.rank) for one in found]
    assert all(math.isnan(one.values[6]) for one in found)
    assert pytest.approx([1 / 8, 1 / 8 + 1]) == [one.values[7] for one in found]
    assert list(range(1, 13)) == found[0].steps


def test_a_value_of_an_unfinished_step_has_no_number(tmp_path: Path) -> None:
    """Points of a run whose spans are gone still show."""
    path = write_run(tmp_path)
    for segment in path.glob("*.traces.*"):
        segment.unlink()
    found = build_report(open_run(path), BEGIN_NS).series
    reward = next(one for one in found if one.name == v.REWARD_SCORE)
    assert {None} == set(reward.steps)
    assert 24 >= len(reward.values) >= 12


JOURNAL = Journal(WriterIdentity("trainer-0-1-0"), [])
PROCESSES: list[Attributes] = [{v.ATTEMPT_ID: attempt, v.RANK: rank} for attempt in "ab" for rank in (0, 1)]
POINTS = st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from([0.5, -1.0, 3.0, math.nan, math.inf]))


def loss(process: Attributes, time_ns: int, value: float) -> PointView:
    """One point of a loss."""
    return PointView(v.LOSS, "gauge", "", time_ns, 0, {}, process, JOURNAL, value)


def lined_up(points: Iterable[tuple[int, int, float]]) -> list[float]:
    """Say by hand what the steps come to where each time is one: the newest attempt's mean, in order of time."""
    times: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    for process, time_ns, value in points:
        times[time_ns].append((str(PROCESSES[process][v.ATTEMPT_ID]), value))
    found: list[float] = []
    for _, values in sorted(times.items()):
        newest = max(attempt for attempt, _ in values)
        finite = [value for attempt, value in values if attempt == newest and math.isfinite(value)]
        found.append(mean(finite) if finite else math.nan)
    return found


@given(points=st.lists(POINTS, min_size=1, max_size=30))
def test_points_of_many_processes_are_those_that_came(points: list[tuple[int, int, float]]) -> None:
    """In whatever order they come."""
    numbers = SeriesPoints()
    for process, time_ns, value in points:
        numbers.add(loss(PROCESSES[process], time_ns, value))
    (found,), own = numbers.series([], Making())
    expected = [value if math.isfinite(value) else None for value in lined_up(points)]
    assert (expected, []) == (found.values, own)


def test_a_point_is_kept_in_a_few_bytes() -> None:
    """12 of each and 250 of its time, where a point takes 600: a run has millions of them."""
    numbers = SeriesPoints()
    numbers.add(loss(PROCESSES[0], 1, 0.5))
    tracemalloc.start()
    try:
        for index in range(40_000):
            numbers.add(loss(PROCESSES[0], index // 2, index / 7))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 40_000 * 24 + 20_000 * 250
