"""Figures of time: the stages of each step, the timeline of one, what each rank did, and where the wall time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.report.data.course import MEDIAN, Course, RankCourse, StepCourse, StepTimeline
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
MANY_PEERS: Final = 64
"""Among more, a rank itself hardly moves the median that it is compared with."""
ALIKE: Final = 1.01
"""Ranks are alike if that of the highest mean has at most so many times the lowest."""
EXCESS: Final = "excess"
ALIKE_TITLE: Final = "No rank works longer than its peers in a mean step"
LEAST: Final = 0.01
"""A smaller share of the wall time is not in the title."""
CLICK: Final = " Click a bar for its timeline."
HEATS: Final[Mapping[str, tuple[str, Unit, str]]] = {
    EXCESS: (
        "works {} a step longer than its peers",
        "s",
        "Time in stages above the median of its peers in the same step.",
    ),
    "active": ("works", "s", "Time in stages, without the collectives and waits inside them."),
    "wait": ("waits for slower ranks", "s", "Time in collectives beyond that of the rank that was in them shortest."),
    "transfer": ("is in collectives without waiting", "s", "The remainder of the time in collectives."),
    "idle": ("is idle", "s", "Time in rl.idle, as a wait for data or for the driver."),
    "other": ("is in no stage", "s", "Time of the step under no stage."),
    "train_tokens": ("trains", "token", "Tokens of the training forwards that the loss uses."),
    "response_tokens": ("generates", "token", "Tokens of the responses generated for training."),
}
"""By number of ``RankCourse``, and `excess`: what a rank does, its unit, and its definition."""


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
    longest = max(range(len(steps.steps)), key=lambda place: steps.time_s[place])
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
        caption=f"Step {steps.steps[longest]} took longest: {seconds(steps.time_s[longest])}. Mean of the ranks; "
        f"a bar is {what}; stages that overlap may add up to more than the step.{loops}{CLICK}",
        reads=tuple({stage.partition(" ")[0] for stage in steps.stages}),
    )


def _timeline(spans: Sequence[StepTimeline]) -> Figure:
    first = next((one for one in spans if one.why == MEDIAN), spans[0])
    processes = max(one.processes for one in spans)
    lanes = max(len(one.lanes) for one in spans)
    all_lanes = "" if lanes == processes else f" {count(lanes)} of {count(processes)} processes have a lane."
    left_out = sum(lane.left_out for one in spans for lane in one.lanes)
    cut = f" {plural(left_out, 'short span')} were left out." if left_out else ""
    arrows = " Arrows lead from a rollout to the step that trains on it." if any(one.arrows for one in spans) else ""
    which = listed([f"{one.step} ({one.why})" for one in spans], most=len(spans))
    return Figure(
        name="timeline",
        title=f"Step {first.step} took {seconds(first.time_ns / 1e9)}",
        x=Axis(label="time since the step began", unit="s"),
        y=Axis(label="process"),
        content=Timelines(steps=spans, first=first.step),
        caption=f"One lane a process, each by its own clock; hatched: waits and collectives.{arrows} "
        f"This page has the spans of {plural(len(spans), 'step')}: {which}.{all_lanes}{cut}",
    )


def rank_figures(report: Report, course: Course) -> list[Figure]:
    """Return what each rank did in each step; nothing for one rank alone."""
    return list(_heats(report, course.ranks, course.steps)) if len(course.ranks.ranks) > 1 else []


def _heats(report: Report, course: RankCourse, steps: StepCourse) -> Iterator[Figure]:
    names = [rank_name(report, one) for one in course.ranks]
    of = bins(steps.steps)
    numbers = {EXCESS: excess(course), **course.numbers} if "active" in course.numbers else course.numbers
    for name, values in numbers.items():
        _, unit, caption = HEATS[name]
        mean = np.nanmean(np.where(np.isnan(values).all(axis=1, keepdims=True), 0.0, values), axis=1)
        if not mean.any():
            continue
        yield Figure(
            name=f"rank-{name.replace('_', '-')}",
            title=_extremes(name, names, mean) + _when(name, values[mean.argmax()], steps.steps),
            x=STEP,
            y=Axis(label="rank", unit=unit),
            content=Heat(
                rows=names,
                left=steps.steps[0] - 0.5,
                right=steps.steps[-1] + 0.5,
                values=np.array(means(np.maximum(values, 0.0), of)),
            ),
            caption=f"{caption} Two of a hundred values may be beyond the colours.",
            reads=(v.COMM,) if name in ("wait", "transfer") else (v.IDLE,) if name == "idle" else (),
        )


def _when(name: str, values: Any, steps: Sequence[int]) -> str:
    """Return in which steps a rank loses most of what it loses, if these are half of the run or fewer."""
    if name != EXCESS or np.nansum(values) <= 0:
        return ""
    lost = np.cumsum(np.nan_to_num(np.maximum(values, 0.0)))
    first, last = (int(np.searchsorted(lost, share * lost[-1])) for share in (0.1, 0.9))
    if 2 * (last - first + 1) > len(steps):
        return ""
    return f", above all in {f'step {steps[first]}' if first == last else f'steps {steps[first]} to {steps[last]}'}"


def excess(course: RankCourse) -> Any:
    """Return by how much longer each rank works in each step than the median of its peers; negative if shorter."""
    active, peers = course.numbers["active"], np.asarray(course.peers)
    found = np.full(active.shape, np.nan)
    for group in np.unique(peers):
        of = np.flatnonzero(peers == group)
        if len(of) > MANY_PEERS:
            found[of] = active[of] - _median(active[of])
        else:
            for rank in of:
                found[rank] = active[rank] - _median(active[of[of != rank]])
    return found


def _median(values: Any) -> Any:
    """Return the median of what is known of each column; NaN where nothing is."""
    middle = np.full(values.shape[1], np.nan)
    is_known = ~np.isnan(values).all(axis=0) if len(values) else np.zeros(len(middle), bool)
    middle[is_known] = np.nanmedian(values[:, is_known], axis=0)
    return middle


def _extremes(name: str, names: Sequence[str], mean: Any) -> str:
    """Return which rank has most in a mean step, and which least, in words, unless all are alike."""
    what, unit, _ = HEATS[name]
    most, least = int(mean.argmax()), int(mean.argmin())
    write, tokens = WRITE[unit], " tokens" if unit == "token" else ""
    highest, lowest = f"{write(mean[most])}{tokens}", write(mean[least])
    if name == EXCESS:
        return f"{names[most].capitalize()} {what.format(highest)}" if mean[most] > 0 else ALIKE_TITLE
    if mean[most] <= ALIKE * mean[least]:
        return f"Every rank {what}: {highest} a step"
    return f"{names[most].capitalize()} {what} most: {highest} a step, {names[least]} least: {lowest}"


def goodput_figures(report: Report) -> list[Figure]:
    """Return where the wall time of each attempt went."""
    rows = report.efficiency.goodput
    if not rows:
        return []
    rows = rows if len(rows) > 2 else rows[-1:]
    everything = rows[-1]
    order = {attempt.id: place for place, attempt in enumerate(report.attempts, 1)}
    shares = {part.kind: part.share for part in everything.parts}
    productive = shares.pop("productive", 0.0)
    largest = sorted((kind for kind in shares if shares[kind] > LEAST), key=lambda kind: -shares[kind])
    rest = [f"{percent(shares[kind])} {kind}" for kind in largest]
    kinds = [part.kind for part in everything.parts if part.time_ns]
    return [
        Figure(
            name="goodput",
            title=", ".join([f"{percent(productive)} of the wall time was productive", *rest]),
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
