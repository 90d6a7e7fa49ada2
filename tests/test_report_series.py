"""Numbers of every step, lined up over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.model import Series
from tests.runs import BEGIN_NS, Plan, write_run


def series(root: Path, name: str, plan: Plan | None = None, **qualifiers: str) -> Series:
    """Find a series of a run by its name and attributes."""
    report = build_report(open_run(write_run(root, plan)), BEGIN_NS)
    return next(one for one in report.series if one.name == name and qualifiers.items() <= one.qualifiers.items())


def test_ranks_are_averaged_by_step(tmp_path: Path) -> None:
    """Rank 1 reports a loss that is higher by 1."""
    loss = series(tmp_path, v.LOSS)
    assert list(range(1, 13)) == loss.steps
    assert pytest.approx([1 / number + 0.5 for number in range(1, 13)]) == loss.values
    assert {v.LOSS_TYPE: "total"} == loss.qualifiers


def test_a_maximum_over_ranks_is_no_mean(tmp_path: Path) -> None:
    """Of maxima the largest counts."""
    assert pytest.approx(0.3) == series(tmp_path, v.REWARD_SCORE, **{v.STATISTIC: "max"}).first


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    """Both ranks reported NaN in step 7: the step has no value, the count says 2."""
    loss = series(tmp_path, v.LOSS, Plan(nan_loss_step=7))
    assert (2, None) == (loss.nonfinite, loss.values[6])


def test_ends_and_extremes_are_of_finite_values(tmp_path: Path) -> None:
    """A NaN at the end leaves the last finite value."""
    loss = series(tmp_path, v.LOSS, Plan(nan_loss_step=12))
    assert pytest.approx((1.5, 1 / 11 + 0.5, 1 / 11 + 0.5, 1.5)) == (loss.first, loss.last, loss.low, loss.high)


def test_a_value_of_an_unfinished_step_has_no_number(tmp_path: Path) -> None:
    """Points of a run whose spans are gone still show."""
    path = write_run(tmp_path)
    for segment in path.glob("*.traces.*"):
        segment.unlink()
    found = build_report(open_run(path), BEGIN_NS).series
    reward = next(one for one in found if one.name == v.REWARD_SCORE)
    assert {None} == set(reward.steps)
    assert 24 >= len(reward.values) >= 12
