"""`docs/findings.md`: the rules of the three findings, as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from otel_rl.catalogue.markdown import code, section
from otel_rl.report.findings.health import HEALTH
from otel_rl.report.findings.learning import LEARN
from otel_rl.report.findings.rule import Rule
from otel_rl.report.findings.timing import TIME

HEAD: Final = """\
# Findings

Written by `python -m otel_rl.catalogue` from the rules in `otel_rl/report/findings/`.

A report begins with three findings: **TIME**, **LEARN** and **HEALTH**. Each is made by the rules of its table, alarms
before warnings before notes. An alarm asks you to act now, a warning to look at something. A note says that nothing is
wrong. While LEARN or HEALTH has an alarm, TIME gives no advice: slow steps are then often a symptom.

Rules of LEARN mostly compare a run with its own past; TIME and HEALTH have fixed limits. LEARN judges the last training
loop of a run.

- **Stays, to the end**: in nearly all steps (most rules: 90 %) from some step on, and in the last three.
- **First twentieth, last fifth**: at least three steps each. If these differ by no more than noise, the rule compares
  the first and the last third.
- **At least 30 steps**: a shorter run is not judged by this rule.
- **Silenced by**: the rule says nothing if one of these rules of its table holds, because that is the cause.
- **Only if nothing else**: the rule speaks only if its table has no alarm and no warning.
"""
TABLES: Final[Sequence[tuple[str, Sequence[Rule[Any]]]]] = (("TIME", TIME), ("LEARN", LEARN), ("HEALTH", HEALTH))


VALUE: Final = re.compile(r"\{(\w+)[^}]*\}")
"""A value of a run, which stands in an advice by its name here."""
COLUMNS: Final = ("rule", "severity", "holds if", "looks at", "advice", "silenced by")


def render() -> str:
    return "\n".join([HEAD, *(section(title, "", COLUMNS, map(_row, rules)) for title, rules in TABLES)])


def _row(rule: Rule[Any]) -> Sequence[str]:
    silent = "only if nothing else" if rule.is_fallback else ", ".join(map(code, rule.silenced_by))
    advice = VALUE.sub(r"the \1", rule.advice)
    return code(rule.name), rule.severity, rule.condition, rule.window, advice, silent
