"""Figures of time: the stages of each step, the timeline of one, what each rank did, and where the wall time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.report.data.course import Course, RankCourse, StepCourse, StepTimeline
from otel_rl.report.data.report import Report
from otel_rl.report.page.figure import (
    STEP,
    WRITE,
    Axis,
    Bars,
    Figure,
    Heat,
    Stack,
    Timelines,
    Unit,
    bins,
    means,
    per_point,
)
from otel_rl.report.section import rank_name
from otel_rl.runs.format import count, listed, percent, plural, seconds

MOST_BARS: Final = 300
MOST_STAGES: Final = 9
MORE: Final = "more stages"
HEATS: Final[Mapping[str, tuple[str, Unit, str]]] = {
    "active": ("works", "s", "Time in stages, without the collectives and waits inside them."),
    "wait": ("waits for slower ranks", "s", "Time in collectives beyond that of the rank that was in them shortest."),
    "transfer": ("is in collectives without waiting", "s", "The remainder of the time in collectives."),
    "idle": ("is idle", "s", "Time in `rl.idle`, as a wait for data or for the driver."),
    "other": ("is in no stage", "s", "Time of the step under no stage."),
    "train_tokens": ("trains", "token", "Tokens of the training forwards that the loss uses."),
    "response_tokens": ("generates", "token", "Tokens of the responses generated for training."),
}
"""By number of ``RankCourse``: what a rank does, its unit, and its definition."""


def step_figures(report: Report, course: Course) -> list[Figure]:
    """Return the stacked stage times, and the timeline of chosen steps."""
    steps = course.steps
    if not steps.steps:
        return []
    found = [_stacked(steps)]
    if course.spans:
        found.append(_timeline(course.spans))
    return found


def _stacked(steps: StepCourse) -> Figure:
    of = bins(steps.steps, MOST_BARS)
    shown = list(steps.stages)[:MOST_STAGES]
    parts = {stage: means(steps.stages[stage], of) for stage in shown}
    rest = [steps.stages[stage] for stage in list(steps.stages)[MOST_STAGES:]]
    if rest:
        parts[MORE] = means(np.sum(rest, axis=0), of)
    total = sum(steps.time_s)
    share = f": {percent(sum(steps.stages[shown[0]]) / total)} of all steps" if shown and total else ""
    each = per_point(steps.steps, MOST_BARS)
    what = "a step" if each == 1 else f"the mean of {plural(each, 'step')}"
    loops = " Only the last training loop is shown." if steps.has_other_loops else ""
    return Figure(
        name="stages",
        title=f"{shown[0]} takes most of the time{share}" if shown else "No stage was recorded in the steps",
        y=Axis(label="time of a step", unit="s"),
        content=Stack(
            left=[steps.steps[one.start] - 0.5 for one in of],
            right=[steps.steps[one.stop - 1] + 0.5 for one in of],
            parts=parts,
        ),
        caption=f"Mean of the ranks; a bar is {what}; stages that overlap may add up to more than the step.{loops} "
        "Click a bar for its timeline.",
        reads=tuple({stage.partition(" ")[0] for stage in steps.stages}),
    )


def _timeline(spans: Sequence[StepTimeline]) -> Figure:
    slowest = max(spans, key=lambda one: one.time_ns)
    left_out = sum(lane.left_out for one in spans for lane in one.lanes)
    cut = f" {plural(left_out, 'short span')} were left out." if left_out else ""
    which = listed([f"{one.step} ({one.why})" for one in spans], most=len(spans))
    return Figure(
        name="timeline",
        title=f"Step {slowest.step} took {seconds(slowest.time_ns / 1e9)}",
        x=Axis(label="time since the step began", unit="s"),
        y=Axis(label="process"),
        content=Timelines(steps=spans, first=slowest.step),
        caption=f"One lane a process, each by its own clock; hatched: waits and collectives. "
        f"This page has the spans of {plural(len(spans), 'step')}: {which}.{cut}",
    )


def rank_figures(report: Report, course: Course) -> list[Figure]:
    """Return what each rank did in each step; nothing for one rank alone."""
    return list(_heats(report, course.ranks, course.steps)) if len(course.ranks.ranks) > 1 else []


def _heats(report: Report, course: RankCourse, steps: StepCourse) -> Iterator[Figure]:
    names = [rank_name(report, one) for one in course.ranks]
    of = bins(steps.steps)
    for name, values in course.numbers.items():
        what, unit, caption = HEATS[name]
        mean = np.nanmean(np.where(np.isnan(values).all(axis=1, keepdims=True), 0.0, values), axis=1)
        if not mean.any():
            continue
        most, least = int(mean.argmax()), int(mean.argmin())
        write = WRITE[unit]
        tokens = " tokens" if unit == "token" else ""
        yield Figure(
            name=f"rank-{name.replace('_', '-')}",
            title=f"{names[most].capitalize()} {what}{' most' if mean[most] > mean[least] else ''}: "
            f"{write(mean[most])}{tokens} a step, {names[least]} {write(mean[least])}",
            x=STEP,
            y=Axis(label="rank", unit=unit),
            content=Heat(
                rows=names,
                left=steps.steps[0] - 0.5,
                right=steps.steps[-1] + 0.5,
                values=np.array(means(values, of)),
            ),
            caption=caption,
            reads=(v.COMM,) if name in ("wait", "transfer") else (v.IDLE,) if name == "idle" else (),
        )


def goodput_figures(report: Report) -> list[Figure]:
    """Return where the wall time of each attempt went."""
    rows = report.efficiency.goodput
    if not rows:
        return []
    rows = rows if len(rows) > 2 else rows[-1:]
    everything = rows[-1]
    order = {attempt.id: place for place, attempt in enumerate(report.attempts, 1)}
    productive = next((part.share for part in everything.parts if part.kind == "productive"), 0.0)
    kinds = [part.kind for part in everything.parts if part.time_ns]
    return [
        Figure(
            name="goodput",
            title=f"{percent(productive)} of the wall time was productive",
            x=Axis(label="share of the wall time", unit="1"),
            y=Axis(label="attempt"),
            content=Bars(
                rows=["all" if row.attempt is None else f"attempt {order.get(row.attempt, 0)}" for row in rows],
                parts={
                    kind: [next((part.share for part in row.parts if part.kind == kind), 0.0) for row in rows]
                    for kind in kinds
                },
            ),
            caption=f"Wall time of {count(everything.ranks)} rank{'s' * (everything.ranks != 1)} together: "
            f"{seconds(everything.wall_ns / 1e9)}.",
        )
    ]
