"""Telling of a stall: as a log record, a metric, one line for people, and JSON for the user's hook."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.probes.sample import Sample, SampleLabels
from otel_rl.records import Log, Value
from otel_rl.runs.format import seconds
from otel_rl.stalls.chain import Link, Stall
from otel_rl.stalls.finder import StallChange
from otel_rl.stalls.inspect_process import evidence_of, mark
from otel_rl.stalls.sentences import chain_of

ERROR: Final = 17
INFO: Final = 9
MOST_SERIES: Final = 100
"""Roles and stages that have had a stall: each stays a series of the metric, at 0."""


class Teller:
    """Gathers evidence on a thread of its own, since that takes seconds, and makes log records of it."""

    def __init__(self, tell_finding: Callable[[StallChange, Log, str], None], say: Callable[[str], None]) -> None:
        """Prepare.

        Args:
            tell_finding: gets each change with its log record and the evidence: a stall is a finding.
            say: takes a line for people.
        """
        self._tell_finding = tell_finding
        self._say = say
        self._changes: SimpleQueue[StallChange | None] = SimpleQueue()
        self._logs: SimpleQueue[Log] = SimpleQueue()
        self._series: dict[SampleLabels, float] = {}
        self.device_errors: Sequence[Sample] = ()
        """What the devices of the node have counted since the sidecar began."""
        self._thread: Thread | None = None

    def tell(self, change: StallChange) -> None:
        """Begin to tell; the log record comes from ``logs`` later."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="tell of stalls", daemon=True)
            self._thread.start()
        self._changes.put(change)

    def logs(self) -> Iterator[Log]:
        """Yield the log records that have become ready."""
        while True:
            try:
                yield self._logs.get_nowait()
            except Empty:
                return

    def samples(self, active: list[Stall]) -> list[Sample]:
        """Return the age of each stall that goes on, by role and stage; 0 for those of before."""
        ages = dict.fromkeys(self._series, 0.0)
        for stall in active:
            labels = _labels(stall.last)
            if labels in ages or len(ages) < MOST_SERIES:
                ages[labels] = max(ages.get(labels, 0.0), stall.last.age_s)
        self._series = ages
        return [Sample(v.STALL_ACTIVE, age_s, labels) for labels, age_s in ages.items()]

    def close(self, timeout_s: float) -> None:
        """Finish what is being told."""
        if self._thread is not None:
            self._changes.put(None)
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (change := self._changes.get()) is not None:
            with guard("tell of a stall"):
                self._tell(change)

    def _tell(self, change: StallChange) -> None:
        last = change.stall.last
        if change.is_end:
            text, evidence = ended_text(change), ""
        else:
            mark(last.process, last.leaf.began_ns)
            text, evidence = chain_of(change.stall), evidence_of(last.process) + self._errors_of_devices()
        attributes = {**_attributes(change), v.STALL_CHAIN: text}
        self._say(text)
        log = _log(change, attributes, text, evidence)
        self._logs.put(log)
        self._tell_finding(change, log, evidence)

    def _errors_of_devices(self) -> str:
        lines = [
            f"Errors of devices of this node: {one.name} {', '.join(value for _, value in one.labels)}: {one.value:.0f}"
            for one in self.device_errors
        ]
        return "".join(f"{line}\n" for line in lines)


def ended_text(change: StallChange) -> str:
    """Return how a stall ended, and what it cost."""
    last = change.stall.last
    normal_s = last.bound.normal_s
    cost = "" if normal_s is None else f", {seconds(max(0.0, change.lasted_s - normal_s))} more than usual"
    who = f"{last.process.kind} {last.process.page.rank}"
    return f"The stall of {who} in {_stage(last)} is over: {change.how}, after {seconds(change.lasted_s)}{cost}."


def stall_id(link: Link) -> str:
    """Return the id of a stall; the flusher of its process makes the same for the event in its span."""
    return f"{link.process.writer}-{link.leaf.began_ns:x}"


def _labels(link: Link) -> SampleLabels:
    return (v.ROLE, link.process.page.role), (v.STAGE, _stage(link))


def _stage(link: Link) -> str:
    return link.process.name_of(link.leaf)


def _attributes(change: StallChange) -> dict[str, Value]:
    stall, last = change.stall, change.stall.last
    page = last.process.page
    found: dict[str, Value] = {
        v.STALL_ID: stall_id(last),
        v.STALL_STATE: "died" if change.has_died else "ended" if change.is_end else "found",
        v.STALL_AGE: change.lasted_s if change.is_end else last.age_s,
        v.STALL_CAUSE: stall.cause,
        v.STAGE: _stage(last),
        v.STALL_ROLE: page.role,
        v.STALL_RANK: page.rank,
        v.STALL_WAITING: len(stall.waiting),
        v.START_TIME: last.leaf.began_ns + page.anchor_ns,
    }
    if last.bound.normal_s is not None:
        found[v.STALL_NORMAL] = last.bound.normal_s
    if page.step is not None:
        found[v.STALL_STEP] = page.step
    return found


def _log(change: StallChange, attributes: dict[str, Value], text: str, evidence: str) -> Log:
    last: Any = change.stall.last
    return Log(
        v.STALL,
        time.time_ns(),
        attributes,
        f"{text}\n\n{evidence}".rstrip(),
        INFO if change.is_end else ERROR,
        int(last.process.page.trace_id or "0", 16),
        int(last.leaf.span_id or "0", 16),
    )
