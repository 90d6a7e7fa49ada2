"""Gauges of rollouts and engines by step: what ends badly, what idles, who waits, how full the KV cache is."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import mean
from otel_rl.journal.read import PointView, Run, points_of
from otel_rl.report.data.course import GaugeCourse
from otel_rl.report.data.ranks import StepKey
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.report.read.step_spans import Window
from otel_rl.runs.spans import text

LABELS: Final[Mapping[str, str]] = {
    v.REQUEST_RATIO: v.OUTCOME_KIND,
    v.TAIL: v.SLOWEST,
    v.ROLLOUT_BUBBLE: "",
    v.GROUPS: v.GROUP_STATE,
    v.IN_FLIGHT: v.REPLICA,
    v.RUNNING: "",
    v.WAITING: "",
    v.KV_USAGE: "",
}
"""The gauges, and by which attribute of theirs they are told apart; an engine's are by its process."""
OF_ENGINES: Final = (v.RUNNING, v.WAITING, v.KV_USAGE)
HIGHEST: Final = (v.WAITING, v.KV_USAGE)
"""Of these a step has the highest value, of the others the mean."""


def rollout_gauges(run: Run, windows: Mapping[StepKey, Window]) -> list[GaugeCourse]:
    """Return the gauges by step: a point belongs to the step in which it was made. Cost: 2 us a point."""
    ordered = sorted(windows.values(), key=lambda one: one.begin_ns)
    begins = [one.begin_ns for one in ordered]
    found: defaultdict[tuple[str, str], defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for journal in run.journals:
        for point in points_of(journal, LABELS.__contains__):
            place = bisect_right(begins, point.time_ns - 1) - 1
            if place >= 0 and point.time_ns <= ordered[place].end_ns and text(point.attributes, v.MODE) != "eval":
                found[point.name, _label(point)][ordered[place].key[2]].append(point.value)
    return [
        GaugeCourse(
            name=name,
            label=label,
            steps=sorted(by_step),
            values=[(max if name in HIGHEST else mean)(by_step[step]) for step in sorted(by_step)],
        )
        for (name, label), by_step in sorted(found.items())
    ]


def _label(point: PointView) -> str:
    if point.name in OF_ENGINES:
        rank = rank_of(point.resource)
        return f"{rank.role} {rank.rank}"
    return text(point.attributes, LABELS[point.name]) if LABELS[point.name] else ""
