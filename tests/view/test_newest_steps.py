"""The steps that came since a report equal those of the report of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from otel_rl.journal.read import Run, open_run
from otel_rl.report import cache
from otel_rl.report.build import build_with_course
from otel_rl.report.data.course import Course
from otel_rl.report.data.report import Report, Series
from otel_rl.report.findings.unmade import Making
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.page.panels import figures_of_steps, make_page
from otel_rl.report.reading import RunReading
from otel_rl.view.newest_steps import NewestSteps, ReadMark
from tests.made_runs import BEGIN_NS, Plan, write_run
from tests.report.test_stored_reports import recorded

NOW_NS = BEGIN_NS + 3_600_000_000_000
CUT = 24
FEW = 12
"""Steps of a curve that has no thick line yet."""


def read(run: Run) -> RunReading:
    reading = RunReading()
    reading.attach(run)
    reading.read()
    return reading


def cut(one: Series, last: int) -> Series:
    count = sum(step is not None and step <= last for step in one.steps)
    return replace(one, steps=one.steps[:count], values=one.values[:count])


def older(report: Report, course: Course, last: int = CUT) -> tuple[Report, Course]:
    """Return a report and a course as they were when a step had just ended."""
    steps = course.steps
    count = sum(step <= last for step in steps.steps)
    shorter = replace(
        steps,
        attempts=steps.attempts[:count],
        steps=steps.steps[:count],
        time_s=steps.time_s[:count],
        stages={stage: times[:count] for stage, times in steps.stages.items()},
    )
    series, numbers = [cut(one, last) for one in report.series], [cut(one, last) for one in report.numbers]
    return replace(report, series=series, numbers=numbers), replace(course, steps=shorter)


def started(reading: RunReading, report: Report, course: Course, since: ReadMark | None = None) -> NewestSteps:
    """Return what goes on from a report that was made before anything was read, or when so much was."""
    newest = NewestSteps()
    page = make_page(report, course, Making())
    newest.take(report, course.steps, figures_of_steps(page), since or ReadMark(-inf, 0, 0, {}))
    return newest


def test_what_is_added_equals_the_report_of_the_whole(tmp_path: Path) -> None:
    """Curves and stage times of two ranks, step by step."""
    run = open_run(write_run(tmp_path, Plan(ranks=2, steps=30)))
    reading = read(run)
    known = cache.dump(reading)
    whole, course = build_with_course(run, NOW_NS, cache.restore(known, run))
    newest = started(reading, *older(whole, course))
    parts = newest.add(reading, newest.mark(reading))
    assert parts is not None
    assert newest._steps.steps == course.steps.steps
    assert {stage: [round(one, 9) for one in times] for stage, times in newest._steps.stages.items()} == {
        stage: [round(one, 9) for one in times] for stage, times in course.steps.stages.items()
    }
    assert [(one.name, one.steps, one.values) for one in newest._report.series] == [
        (one.name, one.steps, one.values) for one in whole.series
    ]
    assert set(parts.body) >= {"figure-reward", "figure-stages"} and not newest.has_outgrown
    assert newest.add(reading, newest.mark(reading)) is None


def times(records: Sequence[StepRecord]) -> dict[Any, Any]:
    return {(one.key, one.rank): (one.step, one.is_guest, dict(one.stages.busy())) for one in records}


@pytest.mark.parametrize("name", ["", "verl_sync", "roll_async"])
def test_what_is_pending_can_be_read_on(name: str, tmp_path: Path) -> None:
    """Its steps are the same a second time, and those of the end; with a driver, too."""
    run = open_run(recorded(tmp_path, name) if name else write_run(tmp_path, Plan(ranks=2, steps=30)))
    reading = read(run)
    first = times(reading.pending_steps(inf))
    assert first and times(reading.pending_steps(inf)) == first
    whole = times(reading.finish(reading.open_stages()).steps)
    assert first.items() <= whole.items()
    assert whole == times(read(run).finish(reading.open_stages()).steps)


def test_a_figure_with_a_new_line_waits_for_a_new_page(tmp_path: Path) -> None:
    """It comes at once."""
    run = open_run(write_run(tmp_path, Plan(ranks=2, steps=30)))
    reading = read(run)
    before = older(*build_with_course(run, NOW_NS, cache.restore(cache.dump(reading), run)), last=FEW)
    newest = started(reading, *before)
    parts = newest.add(reading, newest.mark(reading))
    assert parts is not None and newest.has_outgrown and set(parts.body) == {"figure-stages"}


def test_a_run_that_does_not_grow_has_nothing_to_add(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path, Plan(ranks=2, steps=6)))
    reading = read(run)
    made = build_with_course(run, NOW_NS, cache.restore(cache.dump(reading), run))
    newest = started(reading, *made, since=NewestSteps().mark(reading))
    assert newest.add(reading, newest.mark(reading)) is None
