"""What the rules read, gathered from a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from otel_rl.analysis.series.robust import median
from otel_rl.findings.curves import Learning, Numbers
from otel_rl.findings.health import Health
from otel_rl.findings.judge import Findings, judge
from otel_rl.findings.timing import Timing

if TYPE_CHECKING:
    from otel_rl.report.data.report import Series
    from otel_rl.report.source import Source


def findings(source: Source) -> Findings:
    return judge(timing(source), learning(source), health(source))


def learning(source: Source) -> Learning:
    answers = [record.work.samples for record in source.found.steps if record.work.samples]
    return Learning(
        series=[_numbers(one) for one in source.series],
        of_ranks=[_numbers(one, rank.rank) for rank, one in source.points.numbers.of_ranks(source.found.steps)],
        answers=median(answers) if answers else None,
    )


def _numbers(series: Series, rank: int | None = None) -> Numbers:
    values = [math.nan if x is None else x for x in series.values]
    return Numbers(series.name, series.qualifiers, series.steps, values, rank)


def health(source: Source) -> Health:
    return Health()


def timing(source: Source) -> Timing:
    return Timing(sentence=source.verdict().sentence)
