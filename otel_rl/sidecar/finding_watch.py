"""What the rules find while a run goes on: when each finding begins, and when it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.probes.sample import Sample, SampleLabels
from otel_rl.records import Log, Value
from otel_rl.runs.spans import text

if TYPE_CHECKING:
    from otel_rl.journal.views import LogView
    from otel_rl.report.data.finding import Finding, Findings, Severity
    from otel_rl.report.data.ranks import StepKey

TIMES: Final = 2
"""A finding begins if its rule holds so many times in a row, and is over if it does not hold as often."""
TOLD: Final = ("alarm", "warning")
NUMBERS: Final[dict[str, int]] = {"alarm": 17, "warning": 13}
"""Severities of log records: ERROR and WARN."""
INFO: Final = 9


@dataclass(slots=True)
class _Known:
    """A rule that has found something."""

    kind: str
    severity: Severity
    sentence: str
    is_active: bool = False
    turns: int = 0
    """How often in a row it was other than ``is_active``."""


class FindingWatch:
    """Compares what the rules find with what they found before; another thread may ask for what there is to tell."""

    def __init__(self, before: Iterable[LogView], say: Callable[[str], None]) -> None:
        """Begin with what earlier sidecars of the run told, so that nothing is told twice."""
        self._say = say
        self._lock = threading.Lock()
        self._logs: list[Log] = []
        self._known: dict[str, _Known] = {}
        for log in sorted(before, key=lambda one: one.time_ns):
            kind, severity = (text(log.attributes, key) for key in (v.FINDING_KIND, v.FINDING_SEVERITY))
            known = _Known(kind, "alarm" if severity == "alarm" else "warning", log.body)
            known.is_active = text(log.attributes, v.FINDING_STATE) == "begun"
            self._known[text(log.attributes, v.FINDING_RULE)] = known

    def judge(self, findings: Findings, step: StepKey | None) -> None:
        """Take over what the rules find now; ``step`` is the last one."""
        found = {one.rule: one for one in (*findings.health, *findings.learn, *findings.time) if one.severity in TOLD}
        for rule, finding in found.items():
            known = self._known.setdefault(rule, _Known(finding.kind, finding.severity, ""))
            known.kind, known.severity, known.sentence = finding.kind, finding.severity, finding.sentence
        for rule, known in self._known.items():
            is_found = rule in found
            known.turns = known.turns + 1 if is_found != known.is_active else 0
            if known.turns == TIMES:
                known.is_active, known.turns = is_found, 0
                self._tell(rule, known, found.get(rule), step)

    def logs(self) -> list[Log]:
        """Return the log records that were not returned yet."""
        with self._lock:
            logs, self._logs = self._logs, []
        return logs

    def samples(self) -> list[Sample]:
        """Return for each rule whether it finds something."""
        return [
            Sample(v.FINDING_ACTIVE, float(known.is_active), _labels(rule, known))
            for rule, known in list(self._known.items())
        ]

    def _tell(self, rule: str, known: _Known, finding: Finding | None, step: StepKey | None) -> None:
        advice = "" if finding is None else finding.advice
        body = " ".join(filter(None, (known.sentence, advice))) if finding is not None else f"Over: {known.sentence}"
        attributes: dict[str, Value] = {
            **dict(_labels(rule, known)),
            v.FINDING_STATE: "over" if finding is None else "begun",
        }
        if advice:
            attributes[v.FINDING_ADVICE] = advice
        trace, root = (0, 0) if step is None else (ids.trace_id(*step), ids.root_id(*step))
        severity = INFO if finding is None else NUMBERS[known.severity]
        with self._lock:
            self._logs.append(Log(v.FINDING, time.time_ns(), attributes, body, severity, trace, root))
        self._say(f"{known.kind} {known.severity}: {body}")


def _labels(rule: str, known: _Known) -> SampleLabels:
    return (v.FINDING_RULE, rule), (v.FINDING_KIND, known.kind), (v.FINDING_SEVERITY, known.severity)
