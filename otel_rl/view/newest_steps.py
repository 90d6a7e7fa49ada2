"""The steps that came since a report was made, so that its curves and bars need not wait for the next one.

What is added is exact but for what needs the whole run: which step was made again, and what ended no trace yet.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from otel_rl.report.data.course import StepCourse
from otel_rl.report.data.report import Report, Series
from otel_rl.report.findings.unmade import Making
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.page.document import PageParts, parts_of_figures
from otel_rl.report.page.figure import Figure
from otel_rl.report.page.panels import newer_figures
from otel_rl.report.read.average import average, stages_of_step
from otel_rl.report.reading import RunReading
from otel_rl.report.rows.course_rows import step_course
from otel_rl.report.rows.series import SeriesPoints

LATER_S: Final = 2.0
"""Steps that ended so long before what is shown are made anew: a rank's part of a step may come later than others'."""
LONG_S: Final = 10.0
"""After so long some of the steps that are not shown may be over; until then none is."""
KEPT: Final = 4
"""Points are looked for since the oldest of so many marks, which is longer ago."""


class ReadMark(NamedTuple):
    """How much of a run was read at a time."""

    at_s: float
    bytes: int
    steps: int
    points: Mapping[Any, int]
    """Earlier values of each series: the points of a step come after its spans."""


class NewestSteps:
    """A report, and what came since."""

    def __init__(self) -> None:
        self._points: deque[Mapping[Any, int]] = deque(maxlen=KEPT)
        self._since: ReadMark | None = None
        """How much was read of what is shown; None if nothing is."""
        self._report: Report
        self._steps: StepCourse
        self._shown: Sequence[Figure] = ()
        self.has_outgrown = False
        """Whether a figure has lines or bars now that the page lacks."""

    def mark(self, reading: RunReading) -> ReadMark:
        """Return how much is read."""
        numbers = reading.points.numbers.counts()
        self._points.append(numbers)
        return ReadMark(monotonic(), reading.read_bytes(), len(reading.closed_steps), self._points[0])

    def take(self, report: Report, steps: StepCourse, shown: Sequence[Figure], since: ReadMark) -> None:
        """Go on from a new report, its steps and its figures, which were made when so much was read."""
        self._report, self._steps, self._shown, self._since = report, steps, shown, since
        self.has_outgrown = False

    def add(self, reading: RunReading, now: ReadMark) -> PageParts | None:
        """Add what came since; return the figures that show it, None if nothing came."""
        since = self._since
        if since is None or since.bytes == now.bytes:
            return None
        self._since = now
        age_s = now.at_s - since.at_s
        if age_s < LONG_S:
            records = reading.pending_steps((LATER_S + age_s) * 1e9)
        else:
            records = [*reading.closed_steps[since.steps :], *reading.pending_steps(inf)]
        points = reading.points.numbers.after(since.points)
        report, steps = extended(self._report, self._steps, records, points)
        if steps is self._steps:
            return None
        self._report, self._steps = report, steps
        figures, self.has_outgrown = newer_figures(self._shown, report, steps)
        return parts_of_figures(report.run, figures)


def extended(
    report: Report, known: StepCourse, records: Sequence[StepRecord], points: SeriesPoints
) -> tuple[Report, StepCourse]:
    """Return a report and its steps with newer ones; the same if there are none, or those of another loop."""
    if not known.steps:
        return report, known
    records = [
        one for one in stages_of_step(records) if (one.attempt, one.step.loop) == (known.attempts[-1], known.loop)
    ]
    if not records:
        return report, known
    counts = Counter(one.step.iteration for one in records)
    whole = [step for step, count in counts.items() if count == max(counts.values())]
    records = [one for one in records if one.step.iteration >= min(whole)]
    new = step_course(average(records), known.attempts[-1:])
    if not new.steps or new.steps[-1] <= known.steps[-1]:
        return report, known
    series, numbers = points.series(records, Making())
    added = {(one.name, tuple(sorted(one.qualifiers.items()))): one for one in (*series, *numbers)}
    return replace(report, series=_all(report.series, added), numbers=_all(report.numbers, added)), _joined(known, new)


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
