"""Stands in for a device under ``own_loop.py``: memory as torch's allocator says it, hardware as NVIDIA's driver does.

The readers are otel_rl's own. What a sidecar journals every five seconds is journaled after each step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.write import Writer
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import cuda_reader, probes, use_memory_reader
from otel_rl.probes.nvidia import NvidiaProbe
from otel_rl.probes.sample import Sample
from otel_rl.records import MetricPoints, Number
from tests.fake_cuda import FakeCuda
from tests.nvml import GIB, Driver
from tests.planted.own_loop import Loop

LIMIT = 80 * GIB
MIB = 1 << 20


class Board(Driver):
    """A board whose use and reasons to throttle a problem sets."""

    use, why = 90, 0
    allocated = reserved = 60 * GIB
    """What torch's allocator has given out, and what it holds."""

    def _nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> None:
        rates._obj.gpu, rates._obj.memory = self.use, 40

    def _nvmlDeviceGetMemoryInfo(self, device: Any, info: Any) -> None:
        info._obj.used, info._obj.total = self.reserved, LIMIT

    def _nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, reasons: Any) -> None:
        reasons._obj.value = self.why


def with_board(loop: Loop, change: Callable[[Board, int], None] = lambda board, number: None) -> None:
    """Give a training a board, which a problem changes before each step."""
    board = Board().install(pytest.MonkeyPatch())
    probe, writers, cuda = NvidiaProbe(), list[Writer](), FakeCuda()

    def in_use() -> None:
        probes.device = DeviceInUse(cuda)

    def begin(loop: Loop, number: int) -> None:
        if number == 1:
            probes.has_context = None  # the real torch knows nothing of this device
            use_memory_reader(cuda_reader(cuda, in_use))
        change(board, number)
        for name, size in (("allocated", board.allocated), ("reserved", board.reserved)):
            cuda.stats[f"{name}_bytes"] = {"all": {"current": size, "peak": size}}

    def end(loop: Loop, number: int) -> None:
        if not writers:
            folder = Path(os.environ["OTEL_RL_DIR"]) / os.environ["OTEL_RL_RUN_ID"]
            writers.append(Writer(folder, WriterIdentity("sidecar-0-1-x"), max_bytes=64 * MIB))
        journal(writers[0], probe.read())

    loop.before, loop.after = begin, end


def journal(writer: Writer, samples: Iterable[Sample]) -> None:
    """Append samples as the sidecar does."""
    now_ns = time.time_ns()
    made = [
        MetricPoints(one.name, row.kind, row.unit, "", [Number(now_ns, one.value, dict(one.labels))], now_ns)
        for one in samples
        if (row := v.METRICS.get(one.name)) is not None
    ]
    for request in SpanEncoder({v.ROLE: "sidecar"}).encode_metrics(made):
        writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)
