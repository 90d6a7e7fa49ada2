"""Apply the tables of rules to a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_rl.findings.curves import Learning
from otel_rl.findings.health import HEALTH
from otel_rl.findings.learning import LEARN
from otel_rl.findings.mishaps import Health
from otel_rl.findings.rule import Evidence, Finding, Kind, Rule, Severity, Value, say
from otel_rl.findings.time_spent import Timing
from otel_rl.findings.timing import TIME
from otel_rl.findings.unmade import Making

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


def judge(timing: Timing | None, learning: Learning | None, health: Health | None, making: Making) -> Findings:
    """Apply all rules. While learning or health has an alarm, no finding of time gives advice.

    Without the evidence of a kind, there is no finding of this kind.
    """
    learn = apply(LEARN, "learn", learning, making) if learning is not None else []
    healthy = apply(HEALTH, "health", health, making) if health is not None else []
    time = apply(TIME, "time", timing, making) if timing is not None else []
    if any(finding.severity == "alarm" for finding in (*learn, *healthy)):
        time = [replace(finding, advice="") for finding in time]
    return Findings(time=time, learn=learn, health=healthy)


def apply(
    rules: Sequence[Rule[Evidence]], kind: Kind, evidence: Evidence, making: Making | None = None
) -> list[Finding]:
    """Return what the rules of one table find, the worst first.

    What a rule would have found that fails is not known, so no fallback says that nothing is wrong.
    """
    making = making or Making()
    failed = len(making.unmade)
    made = [(rule, making.make("finding", rule.name, None, _find, rule, kind, evidence)) for rule in rules]
    found = [(rule, *one) for rule, one in made if one is not None]
    names = {rule.name for rule, *_ in found}
    found = [one for one in found if names.isdisjoint(one[0].silenced_by)]
    is_wrong = len(making.unmade) > failed or any(rule.severity != "note" for rule, *_ in found)
    found = [one for one in found if not (one[0].is_fallback and is_wrong)]
    found.sort(key=lambda one: (ORDER.index(one[0].severity), -one[2]))
    return [finding for _, finding, _ in found]


def _find(rule: Rule[Evidence], kind: Kind, evidence: Evidence) -> tuple[Finding, float] | None:
    """Return what one rule finds, and its weight."""
    found = rule.find(evidence)
    if found is None:
        return None
    finding = Finding(
        rule=rule.name,
        kind=kind,
        severity=rule.severity,
        sentence=say(rule.sentence, found.values),
        advice=say(rule.advice, found.values),
        values={name: value for name, value in found.values.items() if _is_finite(value)},
    )
    return finding, found.weight


def _is_finite(value: Value) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
