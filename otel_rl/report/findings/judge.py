"""Apply the tables of rules to a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeGuard

from otel_rl.report.data.finding import Finding, Findings, Kind, Value
from otel_rl.report.data.health_rows import HealthRows
from otel_rl.report.data.rule_settings import RuleSettings
from otel_rl.report.data.time_rows import TimeRows
from otel_rl.report.findings.curves import Learning
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.rule import LONGEST, SEVERITIES, Rows, Rule, say
from otel_rl.report.findings.timing import TIME
from otel_rl.report.findings.unmade import Making
from otel_rl.runs.format import shorten

DEFAULTS: Final = RuleSettings()


def judge(
    timing: TimeRows | None,
    learning: Learning | None,
    health: HealthRows | None,
    making: Making,
    settings: RuleSettings = DEFAULTS,
) -> Findings:
    """Apply all rules. While learning or health has an alarm, no finding of time gives advice.

    Without the rows of a kind, there is no finding of this kind.
    """
    learn = apply(LEARN, "learn", learning, making, settings) if learning is not None else []
    healthy = apply(HEALTH, "health", health, making, settings) if health is not None else []
    time = apply(TIME, "time", timing, making, settings) if timing is not None else []
    if any(finding.severity == "alarm" for finding in (*learn, *healthy)):
        time = [replace(finding, advice="") for finding in time]
    return Findings(time=time, learn=learn, health=healthy)


def apply(
    rules: Sequence[Rule[Rows]],
    kind: Kind,
    rows: Rows,
    making: Making | None = None,
    settings: RuleSettings = DEFAULTS,
) -> list[Finding]:
    """Return what the rules of one table find, the worst first.

    What a rule would have found that fails is not known, so no fallback says that nothing is wrong. A rule that is
    switched off still silences the others: it has found their cause.
    """
    making = making or Making()
    failed = len(making.unmade)
    made = [(rule, making.make("finding", rule.name, None, _find, rule, kind, rows, settings)) for rule in rules]
    found = [(rule, *one) for rule, one in made if one is not None]
    names = {rule.name for rule, *_ in found}
    found = [one for one in found if names.isdisjoint(one[0].silenced_by)]
    found = [one for one in found if one[0].name not in settings.off]
    is_wrong = len(making.unmade) > failed or any(rule.severity != "note" for rule, *_ in found)
    found = [one for one in found if not (one[0].is_fallback and is_wrong)]
    found.sort(key=lambda one: (SEVERITIES.index(one[0].severity), -one[2]))
    return [finding for _, finding, _ in found]


def _find(rule: Rule[Rows], kind: Kind, rows: Rows, settings: RuleSettings) -> tuple[Finding, float] | None:
    """Return what one rule finds, and its weight."""
    found = rule.find(rows, **settings.bounds.get(rule.name, {}))
    if found is None:
        return None
    finding = Finding(
        rule=rule.name,
        kind=kind,
        severity=rule.severity,
        sentence=say(rule.sentence, found.values),
        advice=shorten(settings.advice.get(rule.name, ""), LONGEST) or say(rule.advice, found.values),
        values={name: value for name, value in found.values.items() if _is_written(value)},
        step=found.step,
        since=found.since,
        rank=found.rank,
        stage=found.stage or None,
    )
    return finding, found.weight


def _is_written(value: Value | None) -> TypeGuard[Value]:
    return value is not None and (not isinstance(value, float) or math.isfinite(value))
