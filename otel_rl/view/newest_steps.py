"""The steps that came since a report was made, so that its curves and bars need not wait for the next one.

What is added is exact but for what needs the whole run: which step was made again, and what ended no trace yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple

from otel_rl.report.data.course import Course, StepCourse
from otel_rl.report.data.report import Report, Series
from otel_rl.report.findings.unmade import Making
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.page.document import PageParts, parts_of_figures
from otel_rl.report.page.panels import PageContent, newer_figures
from otel_rl.report.read.average import average, stages_of_step
from otel_rl.report.reading import RunReading
from otel_rl.report.rows.course_rows import step_course
from otel_rl.report.rows.series import SeriesPoints

WINDOW_NS: Final = 6_000_000_000
"""Steps that ended within this time are made anew: a rank's part of a step may come later than that of others."""
KEPT: Final = 5
"""Points are looked for since the oldest of so many marks, which is longer ago."""


class ReadMark(NamedTuple):
    """How much of a run was read at a time."""

    steps: int
    points: Mapping[Any, int]

    @classmethod
    def of(cls, reading: RunReading) -> ReadMark:
        return cls(len(reading.closed_steps), reading.points.numbers.counts())


class NewestSteps:
    """A report, and what came since."""

    def __init__(self) -> None:
        self._marks: deque[ReadMark] = deque(maxlen=KEPT)
        self._since: ReadMark | None = None
        """How much was read when the report was made; None once what came since was added."""
        self._made: tuple[Report, Course, PageContent] | None = None
        self._added_bytes = -1
        self.has_outgrown = False
        """Whether a figure has lines or bars now that the page lacks."""

    def mark(self, reading: RunReading) -> ReadMark:
        """Remember how much is read; return since when a report that is made now has to be added to."""
        self._marks.append(ReadMark.of(reading))
        return ReadMark(self._marks[-1].steps, self._marks[0].points)

    def take(self, report: Report, course: Course, page: PageContent, since: ReadMark) -> None:
        """Go on from a new report."""
        self._made, self._since, self.has_outgrown = (report, course, page), since, False

    def window_ns(self, reading: RunReading) -> float:
        """Return from which time steps are wanted; 0 if there is no page, or nothing was read since it was added to."""
        is_new = self._added_bytes != reading.read_bytes() or self._since is not None
        self._added_bytes = reading.read_bytes()
        return 0.0 if self._made is None or not is_new else WINDOW_NS if self._since is None else inf

    def add(self, reading: RunReading, pending: Sequence[StepRecord]) -> PageParts | None:
        """Add what came since; return the figures that show it, None if nothing came.

        Args:
            reading: of the run.
            pending: the steps whose traces may not be over.
        """
        assert self._made is not None
        report, course, page = self._made
        since, self._since = self._since or ReadMark(len(reading.closed_steps), self._marks[0].points), None
        records = [*reading.closed_steps[since.steps :], *pending]
        newer, longer = extended(report, course, records, reading.points.numbers.after(since.points))
        if longer is course:
            return None
        self._made = newer, longer, page
        figures, self.has_outgrown = newer_figures(page, newer, longer)
        return parts_of_figures(report.run, figures)


def extended(
    report: Report, course: Course, records: Sequence[StepRecord], points: SeriesPoints
) -> tuple[Report, Course]:
    """Return a report and a course with newer steps; the same ones if there are none, or those of another loop."""
    known = course.steps
    if not known.steps:
        return report, course
    records = [
        one for one in stages_of_step(records) if (one.attempt, one.step.loop) == (known.attempts[-1], known.loop)
    ]
    if not records:
        return report, course
    counts = Counter(one.step.iteration for one in records)
    whole = [step for step, count in counts.items() if count == max(counts.values())]
    records = [one for one in records if one.step.iteration >= min(whole)]
    new = step_course(average(records), known.attempts[-1:])
    if not new.steps or new.steps[-1] <= known.steps[-1]:
        return report, course
    series, numbers = points.series(records, Making())
    course = replace(course, steps=_joined(known, new))
    added = {(one.name, tuple(sorted(one.qualifiers.items()))): one for one in (*series, *numbers)}
    return replace(report, series=_all(report.series, added), numbers=_all(report.numbers, added)), course


def _joined(known: StepCourse, new: StepCourse) -> StepCourse:
    keep = bisect_left(known.steps, new.steps[0])
    stages = {
        stage: [
            *known.stages.get(stage, [0.0] * len(known.steps))[:keep],
            *new.stages.get(stage, [0.0] * len(new.steps)),
        ]
        for stage in dict.fromkeys((*known.stages, *new.stages))
    }
    return replace(
        known,
        attempts=[*known.attempts[:keep], *new.attempts],
        steps=[*known.steps[:keep], *new.steps],
        time_s=[*known.time_s[:keep], *new.time_s],
        stages=stages,
    )


def _all(known: Sequence[Series], added: Mapping[Any, Series]) -> list[Series]:
    return [_longer(one, added.get((one.name, tuple(sorted(one.qualifiers.items()))))) for one in known]


def _longer(known: Series, added: Series | None) -> Series:
    new = [] if added is None else [pair for pair in zip(added.steps, added.values, strict=True) if pair[0] is not None]
    if not new:
        return known
    if new[0][0] in known.steps[-len(new) :]:
        new = new[1:]  # some of its ranks' points may be older
    if not new:
        return known
    first = new[0][0] or 0
    keep = len(known.steps)
    while keep and ((step := known.steps[keep - 1]) is None or step >= first):
        keep -= 1
    return replace(
        known,
        steps=[*known.steps[:keep], *(step for step, _ in new)],
        values=[*known.values[:keep], *(value for _, value in new)],
    )
