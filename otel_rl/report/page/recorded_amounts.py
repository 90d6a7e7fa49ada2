"""What was recorded of a run, what was lost, and what that takes."""

from __future__ import annotations

from typing import Final

from otel_rl.report.data.course import Course
from otel_rl.report.data.report import Report
from otel_rl.report.page.figure import Foldouts
from otel_rl.report.section import Line
from otel_rl.runs.format import count, listed, plural, size

WORDS: Final = {"traces": "span", "metrics": "point", "logs": "log record"}


def recorded(report: Report, course: Course) -> Foldouts | None:
    """Return how much was recorded; None of a run of which nothing is known."""
    found = course.recorded
    if not found.bytes:
        return None
    lost = sum(one.count for one in report.losses if one.what == "dropped")
    cut = sum(one.count for one in report.losses if one.what == "changed")
    damaged = sum(one.bytes for one in report.damage)
    what = listed([plural(number, WORDS[signal]) for signal, number in found.records.items() if number])
    bad = [plural(lost, "lost record") if lost else "", f"{size(damaged)} unreadable" if damaged else ""]
    said = " and ".join(filter(None, bad)) or "nothing lost"
    steps = report.steps.recorded
    each = f", {size(found.bytes / steps)} a step" if steps else ""
    who = f"{count(found.processes)} process{'es' * (found.processes != 1)}"
    lines = [Line(f"{what} of {who}, {size(found.bytes)} on disk{each}.")]
    if cut:
        lines.append(Line(f"{count(cut)} parts of records were cut, replaced or left out.", "warning"))
    lines.append(Line("What recording costs in time is not measured in a run: docs/recording.md says it.", "note"))
    total = count(sum(found.records.values()))
    return Foldouts(title=f"{total} records, {said}", blocks=lines, folds=())
