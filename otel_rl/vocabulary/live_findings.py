"""Findings: what the rules say of a run while it goes on."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, counter, event, gauge, label

FINDING: Final = event(
    "rl.finding",
    "what a rule says of the run, when it begins and when it is over; the body is the sentence with its advice. It "
    "lies in the trace of the last step. In a span: told meanwhile",
)
FINDING_ACTIVE: Final = gauge(
    "rl.finding.active", "{finding}", "1 while a rule finds an alarm or a warning; 0 once it is over"
)
FINDING_CALLS: Final = counter("rl.finding.calls", "{call}", "messages to `OTEL_RL_ON_FINDING`, by what became of them")
FINDING_CALL_FAILED: Final = event(
    "rl.finding.call.failed", "the first message of a sidecar that `OTEL_RL_ON_FINDING` did not take; the body says why"
)
FINDING_RULE: Final = label("rl.finding.rule", "the rule, of docs/findings.md")
FINDING_KIND: Final = label("rl.finding.kind", "`time`, `learn` or `health`")
FINDING_SEVERITY: Final = label("rl.finding.severity", "`alarm`: act now; `warning`: look at it")
FINDING_SENTENCE: Final = label("rl.finding.sentence", "what the rule said when the finding began")
FINDING_ID: Final = attribute("rl.finding.id", "string", "the finding: the same when it begins and when it is over")
FINDING_STATE: Final = attribute("rl.finding.state", "string", "`begun` or `over`")
FINDING_ADVICE: Final = attribute("rl.finding.advice", "string", "what to look at or to do next")
