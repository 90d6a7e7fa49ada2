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

While a run goes on, its sidecar judges it by the same rules, and tells what begins and what is over:
[watching.md](watching.md).

## Change a rule

Write a file `otel_rl.toml` into the folder of the runs (`otel_rl_runs` by default), or name another one by
`OTEL_RL_RULES`. Reports of all runs in that folder read it. It needs Python 3.11 or newer.

```toml
[rules.low_gpu_use]
enabled = false              # switched off

[rules.engine_full]
limit = 0.2                  # a bound of the table below: here a share of the requests
advice = "Ask the platform team for larger engines."

[kl]                         # the range that a report shows beside the KL to the reference, nat
stalled = 0.001
healthy_from = 0.005
healthy_to = 0.1
aggressive = 0.3
```

- A rule that is switched off is not shown. What it would silence stays silent.
- `holds if` names the defaults of bounds, also where yours are others. Shares are 0 to 1, times are seconds.
- A name that nothing has is ignored, and the nearest right one is named. A file that cannot be read changes nothing.
  Both stand in the report and in `otel-rl doctor`, which also lists what is changed.
- `rules` of `otel-rl report --json` has the settings that made its findings.
- The usual range of the KL is 0.01 to 0.05 nat; below 0.005 a policy hardly moves, above 0.1 it moves too fast. No rule
  uses these defaults.
"""
TABLES: Final[Sequence[tuple[str, Sequence[Rule[Any]]]]] = (("TIME", TIME), ("LEARN", LEARN), ("HEALTH", HEALTH))


VALUE: Final = re.compile(r"\{(\w+)[^}]*\}")
"""A value of a run, which stands in an advice by its name here."""
COLUMNS: Final = ("rule", "severity", "holds if", "looks at", "advice", "silenced by", "bounds")


def render() -> str:
    return "\n".join([HEAD, *(section(title, "", COLUMNS, map(_row, rules)) for title, rules in TABLES)])


def _row(rule: Rule[Any]) -> Sequence[str]:
    silent = "only if nothing else" if rule.is_fallback else ", ".join(map(code, rule.silenced_by))
    advice = VALUE.sub(r"the \1", rule.advice)
    bounds = ", ".join(code(f"{name} = {value:g}") for name, value in rule.bounds.items())
    return code(rule.name), rule.severity, rule.condition, rule.window, advice, silent, bounds
