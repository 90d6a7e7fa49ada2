"""The one step that would say more about itself than the means say about the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.report import LongStep
from otel_rl.report.read.average import Averaged
from otel_rl.report.read.collect import StepKey, StepRecord

RATIO: Final = 5.0
"""A step is long from this multiple of the median."""
SHARE: Final = 0.1
"""A long step matters from this share of the time of all averaged steps."""


def set_aside(averaged: Averaged) -> tuple[Averaged, LongStep | None]:
    """Leave the one long step out, if there is one; two of them are no accident."""
    steps: defaultdict[StepKey, list[StepRecord]] = defaultdict(list)
    for record in averaged.steady:
        steps[record.key].append(record)
    median_ns = averaged.median_ns  # a million step times are sorted for it
    if median_ns <= 0:  # clocks that stand still
        return averaged, None
    long = [key for key, records in steps.items() if _longest(records).step.time_ns >= RATIO * median_ns]
    if len(long) != 1 or sum(one.step.time_ns for one in steps[long[0]]) < SHARE * averaged.time_ns:
        return averaged, None
    record = _longest(steps[long[0]])
    found = LongStep(
        step=record.step.iteration,
        time_s=record.step.time_ns / 1e9,
        ratio=record.step.time_ns / median_ns,
        stage=_main_stage(record),
    )
    return averaged.without(long[0]), found


def _longest(records: Sequence[StepRecord]) -> StepRecord:
    return max(records, key=lambda record: record.step.time_ns)


def _main_stage(record: StepRecord) -> str:
    times = Counter({path[0]: part.busy_ns for path, part in record.stages.items() if len(path) == 1})
    times[v.OTHER] = record.other_ns
    return times.most_common(1)[0][0]
