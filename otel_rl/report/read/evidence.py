"""What the rules read, gathered from a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from otel_rl.findings.judge import Findings, judge
from otel_rl.findings.learning import Learning, Numbers
from otel_rl.findings.timing import Timing
from otel_rl.report.read.health import health

if TYPE_CHECKING:
    from otel_rl.report.source import Source


def findings(source: Source) -> Findings:
    return judge(timing(source), learning(source), health(source))


def learning(source: Source) -> Learning:
    return Learning(
        series=[
            Numbers(one.name, one.qualifiers, one.steps, [math.nan if x is None else x for x in one.values])
            for one in source.series
        ]
    )


def timing(source: Source) -> Timing:
    return Timing(sentence=source.verdict().sentence)
