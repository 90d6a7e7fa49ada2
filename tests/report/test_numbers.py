"""The numbers that a training records by itself."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Report, Series
from otel_rl.report.terminal import render
from tests.fixtures import Recording


@pytest.fixture
def report(recording: Recording) -> Report:
    """Record a number twice in each of three steps, and one once, outside of them."""
    otel_rl.record("before", 7)
    for number in range(3):
        with otel_rl.step(number):
            for value in (number, number + 1):
                recording.tick(5)
                otel_rl.record("mine", float("nan") if value == 3 else value)
            recording.tick(5)
    return build_report(recording.stop(), 10**18)


def shown(report: Report, width: int) -> str:
    """Render a report as plain text."""
    out = io.StringIO()
    render(report, Console(file=out, width=width))
    return out.getvalue()


def test_a_number_is_placed_in_its_step(report: Report) -> None:
    """Values of one step become their mean; one outside of any step stands alone."""
    expected = Series(
        name="user.mine", qualifiers={}, unit="", first=0.5, last=2.0, mean=4 / 3, low=0.5, high=2.0, nonfinite=1,
        steps=[0, 1, 2], values=[0.5, 1.5, 2.0],
    )  # fmt: skip
    before, mine = report.numbers
    assert ([None], [7.0]) == (before.steps, before.values)
    assert pytest.approx(4 / 3) == mine.mean
    assert expected == replace(mine, mean=4 / 3)


def test_the_largest_numbers_have_a_mean(recording: Recording) -> None:
    """Their sum is infinite as a float."""
    with otel_rl.step(1):
        for _ in range(2):
            recording.tick(5)
            otel_rl.record("huge", 1.7e308)
    (huge,) = build_report(recording.stop(), 10**18).numbers
    assert (1.7e308, 0) == (huge.mean, huge.nonfinite)


def test_numbers_have_a_table(report: Report) -> None:
    """With the same pictures as those of the framework, and what was not finite."""
    assert [
        " numbers  last   mean  min  max",
        "user.before      7      7    7    7  ▁",
        "user.mine        2  1.333  0.5    2  ▁▆█  1 NaN/Inf",
    ] == [line.rstrip() for line in shown(report, 80).partition("\nyour")[2].partition("\n\n")[0].splitlines()]


def test_many_numbers_are_not_listed_whole(report: Report) -> None:
    """The first ones by name, and how many there are besides; long names lose their middle, the table fits."""
    many = [replace(report.numbers[0], name=f"layers.{'x' * 90}.{number:02}") for number in range(15)]
    lines = shown(replace(report, numbers=many), 80).splitlines()
    assert "and 3 more, which --json has" in lines
    names = [line.split()[0] for line in lines if line.startswith("layers.")]
    assert [f".{number:02}" for number in range(12)] == [name[-3:] for name in names]
    assert 80 >= max(map(len, lines[:-1]))  # the last is the path


def test_the_screen_says_that_there_are_many_numbers(report: Report) -> None:
    """Too many for its table, in a run without curves of a framework."""
    many = [replace(report.numbers[0], name=str(number)) for number in range(5)]
    lines = shown(replace(report, numbers=many, series=[]), 80).splitlines()
    assert "5 numbers of your own over the steps: --all" in map(str.rstrip, lines)


def test_of_many_numbers_those_with_most_values_are_listed(report: Report) -> None:
    """A number of each step is not lost among those of single samples."""
    before, mine = report.numbers
    many = [replace(before, name=f"user.accuracy/problem-{number}") for number in range(3000)]
    lines = shown(replace(report, numbers=[*many, replace(mine, name="user.zz")]), 80).splitlines()
    assert "and 2,989 more, which --json has" in lines
    assert (11, 1) == tuple(sum(line.startswith(name) for line in lines) for name in ("user.accuracy/", "user.zz "))


def test_rewards_of_many_functions_do_not_hide_the_loss(report: Report) -> None:
    """What is no part of something else comes first."""
    loss = replace(report.numbers[1], name=v.LOSS)
    parts = [
        replace(loss, name=v.FUNCTION_SCORE, qualifiers={v.REWARD_FUNCTION: f"task {place}"}) for place in range(60)
    ]
    text = shown(replace(report, series=[*parts, replace(loss, name=v.REWARD_SCORE), loss]), 80)
    lines = text.partition("\nover the steps ")[2].splitlines()
    assert "and 22 more, which --json has" in lines
    assert (1, 38, 1) == tuple(
        sum(line.startswith(name) for line in lines) for name in ("reward ", "  reward ", "loss ")
    )
