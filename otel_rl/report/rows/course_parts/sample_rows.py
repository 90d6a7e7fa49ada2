"""The samples of chosen steps, and what stands out among those of a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from otel_rl.analysis.summary import mean
from otel_rl.journal.read import Run
from otel_rl.report.data.course import SampleCourse, SampleRow, SampleStep
from otel_rl.report.data.ranks import StepKey
from otel_rl.report.read.step_spans import Window
from otel_rl.report.rows.course_parts.sample_logs import StepSample, read_samples

MOST_SAMPLES: Final = 1_000
"""Most samples that are kept, in equal parts of each step."""
BEFORE: Final = 4
"""A step may train on what one of so many before it has sampled."""


def make_samples(run: Run, windows: Mapping[StepKey, Window], chosen: Collection[int]) -> SampleCourse:
    """Read the samples of the steps that are chosen, or of those before them whose samples they train on.

    Args:
        run: what is read.
        windows: the times of all steps that count, in their order.
        chosen: numbers of steps.
    """
    order = list(windows)
    near = {order[max(0, at - back)] for at, key in enumerate(order) if key[2] in chosen for back in range(BEFORE)}
    samples, is_part = read_samples(run, [windows[key] for key in order if key in near])
    by_step: defaultdict[StepKey, list[StepSample]] = defaultdict(list)
    for one in samples:
        if one.key in windows:
            by_step[one.key].append(one)
    shown = _shown([key for key in order if key in by_step], chosen)
    rows = [one.row for of in by_step.values() for one in of]
    return SampleCourse(
        steps=[_step(key, by_step[key], MOST_SAMPLES // len(shown)) for key in shown],
        extremes=_extremes(rows),
        count=len(rows),
        of_steps=len(by_step),
        ends=dict(Counter(one.end for one in rows if one.end).most_common()),
        discarded=dict(Counter(one.discarded for one in rows if one.discarded).most_common()),
        is_part=is_part,
    )


def _shown(known: Sequence[StepKey], chosen: Iterable[int]) -> list[StepKey]:
    """Return the steps with samples that chosen ones are, or come after."""
    numbers = [key[2] for key in known]
    places = {max(0, bisect_right(numbers, step) - 1) for step in chosen} if known else set()
    return [known[place] for place in sorted(places)]


def _step(key: StepKey, samples: Sequence[StepSample], most: int) -> SampleStep:
    groups: defaultdict[str, list[SampleRow]] = defaultdict(list)
    for one in samples:
        groups[one.row.group].append(one.row)
    rows = [one.row for one in samples]
    kept: list[SampleRow] = []
    for group in groups.values():
        kept += group if len(kept) + len(group) <= most else group[: most - len(kept)] if not kept else []
    rewards = [one.reward for one in rows if one.reward is not None and math.isfinite(one.reward)]
    return SampleStep(
        step=key[2],
        attempt=key[0],
        trace=samples[0].trace,
        count=len(rows),
        groups=len([name for name in groups if name]),
        mean_reward=mean(rewards) if rewards else math.nan,
        longest=max(one.length for one in rows),
        rows=kept,
    )


def _extremes(rows: Sequence[SampleRow]) -> dict[str, SampleRow]:
    """Return the first sample of each kind, where samples differ in that."""
    scored = [one for one in rows if one.reward is not None and math.isfinite(one.reward)]
    kinds = {
        "longest": (rows, lambda one: one.length),
        "best": (scored, lambda one: one.reward),
        "worst": (scored, lambda one: -one.reward),
        "most turns": (rows, lambda one: one.turns or 0),
        "most calls of tools": (rows, lambda one: one.tool_calls or 0),
    }
    return {
        name: max(of, key=number)
        for name, (of, number) in kinds.items()
        if of and min(map(number, of)) < max(map(number, of))
    }
