"""What the rules read, gathered from a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_rl import vocabulary as v
from otel_rl.analysis.series.robust import median
from otel_rl.journal.read import PointView
from otel_rl.process.on_finding import LiveFinding
from otel_rl.report.data.finding import Finding, Findings
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.rule_settings import RuleSettings
from otel_rl.report.findings.curves import Learning, Numbers
from otel_rl.report.findings.judge import judge
from otel_rl.report.fold.folded_spans import sums_of
from otel_rl.report.rows.gather_health import health_rows
from otel_rl.report.rows.gather_time import time_rows
from otel_rl.report.rows.series import last_loop
from otel_rl.runs.spans import text

if TYPE_CHECKING:
    from otel_rl.report.source import Source
    from otel_rl.tables.forest import Ints


def findings(source: Source, settings: RuleSettings, *, with_time: bool = True) -> Findings:
    """Return what the rules find. TIME, which compares all steps of all ranks, takes longer than all the others."""
    make = source.making.make
    return judge(
        make("finding", "TIME", None, time_rows, source) if with_time else None,
        make("finding", "LEARN", None, learning, source),
        make("finding", "HEALTH", None, health_rows, source),
        source.making,
        settings,
    )


def with_begin(findings: Findings, told: Iterable[LiveFinding]) -> Findings:
    """Add to each finding since when it is told while the run goes on."""
    begun = {one.rule: one for one in told}

    def dated(one: Finding) -> Finding:
        before = begun.get(one.rule)
        return one if before is None else replace(one, told_ns=before.time_ns, told_step=before.step)

    of_kinds = {kind: [dated(one) for one in getattr(findings, kind)] for kind in ("time", "learn", "health")}
    return Findings(**of_kinds)


def learning(source: Source) -> Learning:
    samples: Ints = sums_of(source.found.steps).work.samples
    answers = samples[samples != 0].tolist()
    answers += [one.work.samples for one in source.found.trajectories.steps.values() if one.work.samples]
    found = source.points.numbers.of_ranks(source.found.steps, source.making)
    return Learning(
        series=[_last_loop(one.name, one.qualifiers, one.steps, one.values) for one in source.curves],
        of_ranks=[_last_loop(one.name, one.qualifiers, one.steps, one.values, one.rank) for one in found],
        settings=source.settings,
        algorithm=text(source.resource, v.ALGORITHM),
        is_led=bool(source.found.led),
        answers=median(answers) if answers else None,
        groups=_groups(source, sum(answers)),
        dropped=_dropped(source.points.dropped.points()),
    )


def _groups(source: Source, answers: float) -> int:
    """Return how many groups of the training are known; by the size of a group, those without a name, too."""
    spans, size = source.found.trajectories, source.settings.get(v.SETTINGS_GROUP.removeprefix(v.SETTINGS))
    nameless = spans.nameless if spans.groups or spans.nameless else answers
    return len(spans.groups) + (int(nameless // size) if size else 0)


def _dropped(points: Iterable[PointView]) -> Counter[str]:
    """Count the groups of the training that were dropped, by reason."""
    found: Counter[str] = Counter()
    for point in points:
        if text(point.attributes, v.MODE) != "eval":
            found[text(point.attributes, v.DROPPED_BECAUSE)] += int(point.value)
    return found


def _last_loop(
    name: str,
    qualifiers: Mapping[str, str],
    steps: Sequence[int | None],
    values: Sequence[float | None],
    rank: Rank | None = None,
) -> Numbers:
    """Return the numbers of the last training loop."""
    start = last_loop(steps)
    kept = [math.nan if value is None else value for value in values[start:]]
    return Numbers(name, qualifiers, steps[start:], kept, rank)
