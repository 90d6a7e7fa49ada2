"""Actions that call: a rule that the user chose calls the hook, whatever its severity."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from otel_rl import vocabulary as v
from otel_rl.config import ON_FINDING
from otel_rl.probes.sample import Sample, SampleLabels
from otel_rl.process.on_finding import LiveFinding
from otel_rl.records import Log, Value
from otel_rl.runs.action_settings import Action
from otel_rl.sidecar.finding_hook import FindingHook

INFO, WARN = 9, 13


class CallActions:
    """The actions of a run that call; used under the lock of who tells."""

    def __init__(self) -> None:
        self.chosen: list[Action] = []
        self._counts: Counter[SampleLabels] = Counter()

    def take(self, finding: LiveFinding, hook: FindingHook) -> Iterator[Log]:
        """Call for a finding if an action wants it and the hook is not called anyway; yield what was done."""
        wanting = [one for one in self.chosen if one.rule == finding.rule]
        if any(not one.dry_run for one in wanting) and not hook.takes(finding.severity):
            hook.call({"event": v.FINDING, **finding.to_json()})
        for action in wanting:
            outcome, sentence = "done", f"Called: {finding.sentence}"
            if action.dry_run:
                outcome, sentence = "rehearsed", f"Would call: {finding.sentence}"
            elif not hook.has_target:
                outcome, sentence = "failed", f"Nobody was called, as {ON_FINDING} is not set: {finding.sentence}"
            labels = (v.ACTION_NAME, action.name), (v.ACTION_KIND, action.do), (v.ACTION_OUTCOME, outcome)
            self._counts[labels] += 1
            attributes: dict[str, Value] = {**dict(labels), v.ACTION_STEP: finding.step or 0}
            trace, span = (int(one or "0", 16) for one in (finding.trace_id, finding.span_id))
            severity = WARN if outcome == "failed" else INFO
            yield Log(v.ACTION_TAKEN, finding.time_ns or time.time_ns(), attributes, sentence, severity, trace, span)

    def samples(self) -> list[Sample]:
        """Return how often each was due, by outcome."""
        return [Sample(v.ACTIONS, number, labels) for labels, number in self._counts.items()]
