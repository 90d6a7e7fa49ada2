"""Marks in the spans of steps: what the sidecar has found, in the trace where people look."""

from __future__ import annotations

from collections import deque
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.process.mailbox import Inbox, Message
from otel_rl.process.on_finding import FINDING
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.memory import tracing

SHOWN: Final = {
    v.FINDING_RULE: "rule",
    v.FINDING_KIND: "kind",
    v.FINDING_SEVERITY: "severity",
    v.FINDING_STATE: "state",
    v.FINDING_ID: "id",
    v.FINDING_SENTENCE: "sentence",
}


class FindingMarks:
    """Adds an event to the open step for each finding that was told; used by the flusher of the process with the roots.

    The step that a finding is about has ended, and a span that was written takes no event: its trace has the log record
    ``rl.finding``. The event is in the step that went on when the finding was told.
    """

    def __init__(self) -> None:
        self._inbox = Inbox()
        self._waiting: deque[Message] = deque()

    def update(self) -> None:
        """Mark the open step, or the next one. Cost: a look into a directory."""
        identity = state.identity
        if state.directory is None or not (identity.known and identity.emits_root):
            return
        new = self._inbox.new(state.directory, identity.attempt_id)
        self._waiting += (content for kind, content in new if kind == FINDING and content.get("rule") != "stalled")
        container = tracing.container
        while self._waiting and container is not None and not container.ended:
            found = self._waiting.popleft()
            said: dict[str, Value] = {name: str(found.get(key, "")) for name, key in SHOWN.items()}
            container.add_event(v.FINDING, said)
