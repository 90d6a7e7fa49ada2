"""Apply the tables of rules to a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_rl.findings.curves import Learning
from otel_rl.findings.health import HEALTH
from otel_rl.findings.learning import LEARN
from otel_rl.findings.mishaps import Health
from otel_rl.findings.rule import Evidence, Finding, Kind, Rule, Severity, say
from otel_rl.findings.time_spent import Timing
from otel_rl.findings.timing import TIME

ORDER: Final[tuple[Severity, ...]] = ("alarm", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the rules say, the worst first in each list."""

    time: list[Finding]
    """Where the time goes, and what would gain most."""
    learn: list[Finding]
    """Whether the model learns."""
    health: list[Finding]
    """Memory, errors, losses, missing ranks."""


def judge(timing: Timing, learning: Learning, health: Health) -> Findings:
    """Apply all rules. While learning or health has an alarm, no finding of time gives advice."""
    learn, healthy = apply(LEARN, "learn", learning), apply(HEALTH, "health", health)
    time = apply(TIME, "time", timing)
    if any(finding.severity == "alarm" for finding in (*learn, *healthy)):
        time = [replace(finding, advice="") for finding in time]
    return Findings(time=time, learn=learn, health=healthy)


def apply(rules: Sequence[Rule[Evidence]], kind: Kind, evidence: Evidence) -> list[Finding]:
    """Return what the rules of one table find, the worst first."""
    found = [(rule, one) for rule in rules if (one := rule.find(evidence)) is not None]
    names = {rule.name for rule, _ in found}
    found = [(rule, one) for rule, one in found if names.isdisjoint(rule.silenced_by)]
    is_wrong = any(rule.severity != "note" for rule, _ in found)
    found = [(rule, one) for rule, one in found if not (rule.is_fallback and is_wrong)]
    found.sort(key=lambda pair: (ORDER.index(pair[0].severity), -pair[1].weight))
    return [
        Finding(
            rule=rule.name,
            kind=kind,
            severity=rule.severity,
            sentence=say(rule.sentence, one.values),
            advice=say(rule.advice, one.values),
            values=dict(one.values),
        )
        for rule, one in found
    ]
