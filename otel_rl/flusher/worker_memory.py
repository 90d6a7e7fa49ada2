"""The memory of a process that has no steps and works for those of another one: agent loop, server, reward worker."""

from __future__ import annotations

from typing import Final

from otel_rl.clock import monotonic_ns
from otel_rl.metrics.record import Fold
from otel_rl.probes.memory import UNREAD, Reading, probes
from otel_rl.probes.memory_numbers import host_points
from otel_rl.process.state import state
from otel_rl.trace.guest import guest
from otel_rl.trace.memory import tracing

EVERY_NS: Final = 10_000_000_000


class WorkerMemory:
    """Emits the last reading every 10 s, and at the end; used by the flusher only. It reads nothing itself."""

    def __init__(self) -> None:
        self._reading: Reading = UNREAD
        self._emitted_ns = 0

    def fold(self, fold: Fold, *, is_last: bool) -> None:
        reading, now = probes.reading, monotonic_ns()
        has_steps = tracing.loops or guest.has_rank
        if has_steps or not tracing.carried or reading is self._reading:
            return
        self._emitted_ns = self._emitted_ns or now
        if is_last or now - self._emitted_ns >= EVERY_NS:
            self._reading, self._emitted_ns = reading, now
            for point in host_points(reading, now + state.clock.anchor):
                fold.point(point)
