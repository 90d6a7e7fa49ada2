"""Findings: what the rules say of a run while it goes on."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import event, gauge, label, log_attribute

FINDING: Final = event(
    "rl.finding",
    "what a rule of docs/findings.md says of the run, when that begins and when it is over; the body is the sentence "
    "with its advice. It lies in the trace of the last step",
)
FINDING_ACTIVE: Final = gauge(
    "rl.finding.active", "{finding}", "1 while a rule finds an alarm or a warning; 0 once it is over"
)
FINDING_RULE: Final = label("rl.finding.rule", "the rule, of docs/findings.md")
FINDING_KIND: Final = label("rl.finding.kind", "`time`, `learn` or `health`")
FINDING_SEVERITY: Final = label("rl.finding.severity", "`alarm`: act now; `warning`: look at it")
FINDING_STATE: Final = log_attribute("rl.finding.state", "string", "`begun` or `over`")
FINDING_ADVICE: Final = log_attribute("rl.finding.advice", "string", "what to look at or to do next")
