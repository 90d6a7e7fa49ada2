"""Rollout servers on the devices of ranks: while they generate, a rank that waits for its driver is of use."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Goodput
from otel_rl.analysis.intervals import Interval, common, covered
from otel_rl.journal.read import SpanView
from otel_rl.report.read.single_controller.trajectories import Union
from otel_rl.runs.spans import text

SLEEP: Final = "sleep_replicas"
"""Servers that are put to sleep before an update leave their devices to the ranks."""
APART: Final = "rollout_weights"
"""The role of processes that take weights for servers with devices of their own."""


class SharedDevices:
    """When servers generated, by host."""

    def __init__(self) -> None:
        self._serving: defaultdict[str, Union] = defaultdict(Union)
        self._evaluations: defaultdict[str, Union] = defaultdict(Union)
        self._sleeping: set[str] = set()
        """Attempts whose driver lets servers sleep."""
        self._apart: set[str] = set()

    def add(self, span: SpanView) -> None:
        if span.name == v.SAMPLE_SERVE:
            self._serving[text(span.resource, v.HOST_NAME)].add((span.start_ns, span.end_ns))
        elif span.name == v.EVALUATE:
            self._evaluations[text(span.resource, v.HOST_NAME)].add((span.start_ns, span.end_ns))
        elif span.name == v.SYNC:
            attempt = text(span.resource, v.ATTEMPT_ID)
            if text(span.resource, v.ROLE) == APART:
                self._apart.add(attempt)
            elif text(span.attributes, v.SYNC_OPERATION) == SLEEP:
                self._sleeping.add(attempt)

    def with_rollouts(self, parts: Goodput, waits: tuple[Interval, ...], attempt: str, host: str) -> Goodput:
        """Count a rank's waits for its driver as what the servers of its host did meanwhile, by that host's clock."""
        if attempt not in self._sleeping - self._apart:
            return parts
        generating = common(waits, self._serving[host].merged())
        evaluating_ns = covered(common(generating, self._evaluations[host].merged()))
        training_ns = covered(generating) - evaluating_ns
        return parts._replace(
            idle_ns=parts.idle_ns - training_ns - evaluating_ns,
            productive_ns=parts.productive_ns + training_ns,
            overhead_ns=parts.overhead_ns + evaluating_ns,
        )
