"""What the rules read, gathered from a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from otel_rl.analysis.series.robust import median
from otel_rl.findings.curves import Learning, Numbers
from otel_rl.findings.judge import Findings, judge
from otel_rl.report.read.run_health import health
from otel_rl.report.read.step_time import timing

if TYPE_CHECKING:
    from otel_rl.report.source import Source


def findings(source: Source) -> Findings:
    return judge(timing(source), learning(source), health(source))


def learning(source: Source) -> Learning:
    answers = [record.work.samples for record in source.found.steps if record.work.samples]
    found = source.points.numbers.of_ranks(source.found.steps)
    return Learning(
        series=[
            Numbers(one.name, one.qualifiers, one.steps, [math.nan if x is None else x for x in one.values])
            for one in source.series
        ],
        of_ranks=[Numbers(one.name, one.qualifiers, one.steps, one.values, one.rank) for one in found],
        answers=median(answers) if answers else None,
    )
