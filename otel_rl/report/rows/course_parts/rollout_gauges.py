"""Gauges of rollouts, engines and devices by step: what ends badly, what idles, who waits, what memory is used."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.summary import mean
from otel_rl.journal.read import PointView, Run, points_of
from otel_rl.report.data.course import GaugeCourse
from otel_rl.report.data.ranks import Rank, StepKey
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
    v.ACTIVATION: "",
}
"""The gauges, and by which attribute of theirs they are told apart."""
OF_PROCESSES: Final = (v.RUNNING, v.WAITING, v.KV_USAGE, v.ACTIVATION)
"""Each process has its own of these."""
HIGHEST: Final = (v.WAITING, v.KV_USAGE, v.ACTIVATION)
"""Of these a step has the highest value, of the others the mean."""
Key = tuple[str, str, Rank | None]
"""Name, label and process."""


def rollout_gauges(run: Run, windows: Mapping[StepKey, Window]) -> list[GaugeCourse]:
    """Return the gauges by step: a point belongs to the step in which it was made. Cost: 2 us a point."""
    ordered = sorted(windows.values(), key=lambda one: one.begin_ns)
    begins = [one.begin_ns for one in ordered]
    found: defaultdict[Key, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for journal in run.journals:
        for point in points_of(journal, LABELS.__contains__):
            place = bisect_right(begins, point.time_ns - 1) - 1
            if place >= 0 and point.time_ns <= ordered[place].end_ns and text(point.attributes, v.MODE) != "eval":
                found[_key(point)][ordered[place].key[2]].append(point.value)
    return [
        GaugeCourse(
            name=name,
            label=label,
            rank=rank,
            steps=sorted(by_step),
            values=[(max if name in HIGHEST else mean)(by_step[step]) for step in sorted(by_step)],
        )
        for (name, label, rank), by_step in sorted(found.items())
    ]


def _key(point: PointView) -> Key:
    if point.name in OF_PROCESSES:
        rank = rank_of(point.resource)
        return point.name, f"{rank.role} {rank.rank}", rank
    return point.name, text(point.attributes, LABELS[point.name]) if LABELS[point.name] else "", None
