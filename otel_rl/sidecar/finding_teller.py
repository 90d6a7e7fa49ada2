"""Telling of findings and stalls: to the journal, to people, to the training processes, and to the user's hook."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.config import Config
from otel_rl.guard import guard
from otel_rl.probes.sample import Sample
from otel_rl.process.mailbox import send
from otel_rl.process.on_finding import FINDING, LiveFinding, active, told
from otel_rl.records import Log, Value
from otel_rl.sidecar.call_actions import CallActions
from otel_rl.sidecar.finding_hook import FindingHook

NUMBERS: Final[dict[str, int]] = {"alarm": 17, "warning": 13}
"""Severities of log records: ERROR and WARN."""
INFO: Final = 9
OF_STALLS: Final = ("stalled", "stood_still")
"""Rules that say what the watch for stalls has told already."""
STALLED: Final = OF_STALLS[0]
CONFIRM_S: Final = 60.0
"""A stall that an earlier sidecar told is over if it is not seen again in this time."""
CLOSE_S: Final = 5.0
PLACE: Final = "{trace_id}"
LOST: Final = "Over: {} It ended while no sidecar watched."


class FindingTeller:
    """Tells each finding once when it begins and once when it is over, from any thread, also after another sidecar."""

    def __init__(self, directory: Path, sender: str, config: Config, say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            directory: of the run.
            sender: the name under which this sidecar writes.
            config: of the hook.
            say: takes a line for people.
        """
        self._directory = directory
        self._sender = sender
        self._traces_url = config.traces_url
        self._say = say
        self._lock = threading.Lock()
        self._logs: list[Log] = []
        self._over: dict[str, LiveFinding] = {}
        """What is over, by rule."""
        self.active: dict[str, LiveFinding] = {}
        """What goes on, by id."""
        self.hook = FindingHook(config, self._say_of_hook)
        self._untaken: str | None = None
        """Why the hook did not take the first message that it did not take."""
        self._is_untaken_told = False
        self.calls = CallActions()
        self._unconfirmed: set[str] = set()
        self._since_s = time.monotonic()

    def adopt(self, is_mine: Callable[[LiveFinding], bool]) -> list[LiveFinding]:
        """Go on with what earlier sidecars have told and what is not over, so that nothing is told twice; return it."""
        before = {number: one for number, one in active(told(self._directory)).items() if is_mine(one)}
        with self._lock:
            self.active = {**before, **self.active}
            self._unconfirmed |= {one.id for one in before.values() if one.rule == STALLED}
        return list(before.values())

    def tell(self, finding: LiveFinding) -> None:
        """Tell that a finding begins or is over; what was told already is not told again."""
        with self._lock:
            self._unconfirmed.discard(finding.id)
            if (finding.id in self.active) == (finding.state == "begun"):
                return
            time_ns = finding.time_ns or time.time_ns()
            finding = replace(finding, run=finding.run or self._directory.name, time_ns=time_ns)
            finding = replace(finding, link=self._link(finding.trace_id))
            self._note(finding)
            self._logs += [_log(finding), *self.calls.take(finding, self.hook)]
        if finding.rule != STALLED:
            self._say(f"{finding.kind} {finding.severity}: {_body(finding)}")
        with guard("tell the training processes of a finding"):
            send(self._directory, self._sender, FINDING, finding.attempt, finding.to_json())
        if self.hook.takes(finding.severity):
            self.hook.call({"event": v.FINDING, **finding.to_json()})

    def logs(self) -> list[Log]:
        """Return the log records that were not returned yet."""
        with self._lock:
            is_late = time.monotonic() - self._since_s > CONFIRM_S
            lost = [self.active[number] for number in self._unconfirmed] if is_late else []
        for one in lost:
            self.tell(replace(one, state="over", sentence=LOST.format(one.sentence), advice="", time_ns=0))
        with self._lock:
            logs, self._logs = self._logs, []
        if self._untaken is not None and not self._is_untaken_told:
            self._is_untaken_told = True
            logs.append(Log(v.FINDING_CALL_FAILED, time.time_ns(), {}, self._untaken, NUMBERS["warning"]))
        return logs

    def samples(self) -> list[Sample]:
        """Return for each rule that has found something whether it still does, and what became of the messages."""
        with self._lock:
            values = {_labels(one): 0.0 for one in self._over.values()}
            values |= {_labels(one): 1.0 for one in self.active.values()}
            outcomes, called = Counter(self.hook.outcomes), self.calls.samples()
        found = [Sample(v.FINDING_ACTIVE, value, labels) for labels, value in values.items()]
        return found + called + [Sample(v.FINDING_CALLS, number, ((v.OUTCOME, of),)) for of, number in outcomes.items()]

    def close(self) -> None:
        """Give the hook a moment for what waits."""
        self.hook.close(CLOSE_S)

    def _say_of_hook(self, text: str) -> None:
        """Take a line of the hook, on any thread; the first one is journaled, too."""
        self._say(text)
        if self._untaken is None:
            self._untaken = f"{text}. Look into sidecar.log of the run for further ones"

    def _link(self, trace: str) -> str:
        """Return where people look: at the trace of the step, else at the directory of the run."""
        if not (self._traces_url and trace):
            return self._directory.absolute().as_uri()
        place = self._traces_url if PLACE in self._traces_url else f"{self._traces_url.rstrip('/')}/trace/{PLACE}"
        return place.replace(PLACE, trace)

    def _note(self, finding: LiveFinding) -> None:
        if finding.state == "begun":
            self.active[finding.id] = finding
        elif before := self.active.pop(finding.id, None):
            self._over[finding.rule] = before


def _body(finding: LiveFinding) -> str:
    return " ".join(filter(None, (finding.sentence, finding.advice)))


def _labels(finding: LiveFinding) -> tuple[tuple[str, str], ...]:
    return (
        (v.FINDING_RULE, finding.rule),
        (v.FINDING_KIND, finding.kind),
        (v.FINDING_SEVERITY, finding.severity),
        (v.FINDING_SENTENCE, finding.sentence),
    )


def _log(finding: LiveFinding) -> Log:
    attributes: dict[str, Value] = {
        v.FINDING_RULE: finding.rule,
        v.FINDING_KIND: finding.kind,
        v.FINDING_SEVERITY: finding.severity,
        v.FINDING_STATE: finding.state,
        v.FINDING_ID: finding.id,
    }
    if finding.advice:
        attributes[v.FINDING_ADVICE] = finding.advice
    severity = INFO if finding.state == "over" else NUMBERS[finding.severity]
    trace, span = (int(one or "0", 16) for one in (finding.trace_id, finding.span_id))
    return Log(v.FINDING, finding.time_ns, attributes, _body(finding), severity, trace, span)
