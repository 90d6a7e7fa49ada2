"""The sidecar's watch for stalls: what it finds becomes log records and samples of its own journal."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.journal.identity import WriterIdentity
from otel_rl.probes.sample import Sample
from otel_rl.process.on_finding import LiveFinding
from otel_rl.records import Log
from otel_rl.sidecar.finding_teller import STALLED, FindingTeller
from otel_rl.sidecar.owner import living
from otel_rl.stalls.bounds import StallBounds
from otel_rl.stalls.finder import StallChange, StallFinder
from otel_rl.stalls.sentences import ADVICE
from otel_rl.stalls.tell import Teller

CLOSE_S: Final = 5.0
"""How long the end of the sidecar waits for evidence that is being gathered."""


class StallWatch:
    """Watches the processes of one run on one node."""

    def __init__(
        self,
        directory: Path,
        is_mine: Callable[[WriterIdentity], bool],
        say: Callable[[str], None],
        findings: FindingTeller,
    ) -> None:
        self._watch = StallFinder(
            directory, is_mine, StallBounds.from_env(), lambda one: living(directory, one.boot_id) is not None
        )
        self._findings = findings
        host = socket.gethostname()
        findings.adopt(lambda one: one.rule == STALLED and one.evidence.get(v.HOST_NAME) == host)
        self._teller = Teller(self._tell, say)

    def look(self, device_errors: Sequence[Sample]) -> list[Log]:
        """Look for stalls if it is time to; return what there is to journal. Never waits.

        Args:
            device_errors: what the devices of the node have counted so far, for the evidence.
        """
        self._teller.device_errors = device_errors
        if self._watch.is_due:
            for change in self._watch.look():
                self._teller.tell(change)
        return list(self._teller.logs())

    def samples(self) -> list[Sample]:
        """Return the age of each stall that goes on."""
        return self._teller.samples(self._watch.active)

    def close(self) -> list[Log]:
        """Tell how the last stalls ended, and return what is still to be journaled."""
        with guard("watch for stalls"):
            for change in self._watch.look():
                self._teller.tell(change)
        self._teller.close(CLOSE_S)
        return list(self._teller.logs())

    def _tell(self, change: StallChange, log: Log, evidence: str) -> None:
        page = change.stall.last.process.page
        said = dict(log.attributes)
        stacks = {"stacks": evidence} if evidence else {}
        self._findings.tell(
            LiveFinding(
                rule=STALLED,
                kind="health",
                severity="alarm",
                state="over" if change.is_end else "begun",
                sentence=str(said[v.STALL_CHAIN]),
                advice="" if change.is_end else ADVICE,
                evidence={v.HOST_NAME: page.identity.host, **said, **stacks},
                attempt=page.attempt,
                step=page.step,
                id=str(said[v.STALL_ID]),
                time_ns=log.time_ns,
                trace_id=f"{log.trace_id:032x}",
                span_id=f"{log.span_id:016x}",
            )
        )
