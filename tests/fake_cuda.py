"""What stands in for ``torch.cuda``: a device with a clock of its own, shaped as torch's objects are.

Work takes as long as the test says and is done in order on each stream; nothing is done before the test lets time pass.
Numbers are as torch gives them: milliseconds that went through a float32, and statistics as nested dictionaries.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any


class Stream:
    """Work in order."""

    def __init__(self, cuda: FakeCuda, device: int = 0) -> None:
        self.cuda = cuda
        self.device = f"cuda:{device}"
        self.free_at = 0.0


class Event:
    """A mark on a stream; made by ``FakeCuda.Event``."""

    def __init__(self, cuda: FakeCuda, enable_timing: bool) -> None:
        self.cuda, self.enable_timing = cuda, enable_timing
        self.at = -1.0
        self.device = ""

    def record(self, stream: Stream) -> None:
        self.cuda.check()
        if self.device not in ("", stream.device):
            raise RuntimeError("Event device does not match recording stream's device")
        if self.cuda.capturing:
            raise AssertionError("an event was recorded into a graph")
        self.device = stream.device
        self.cuda.records += 1
        self.at = max(stream.free_at, self.cuda.now)

    def query(self) -> bool:
        self.cuda.check()
        if self.cuda.capturing:
            raise AssertionError("an event was asked during a capture")
        self.cuda.queries += 1
        return 0 <= self.at <= self.cuda.now

    def elapsed_time(self, end: Event) -> float:
        self.cuda.check()
        if not (self.query() and end.query() and self.enable_timing and end.enable_timing):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return struct.unpack("f", struct.pack("f", (end.at - self.at) * 1e3))[0]


class FakeCuda:
    """The module. ``launch`` and ``wait`` are the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing = self.lost = False
        self.initialized = True
        self.queries = self.records = 0
        self.events: list[Event] = []
        self.stream = Stream(self)
        self.usage = (6, 10)
        self.name = "NVIDIA H100 80GB HBM3"
        self.stats: dict[Any, Any] = {
            "allocated_bytes": {"all": {"current": 1, "peak": 2}},
            "reserved_bytes": {"all": {"current": 3, "peak": 4}},
        }
        self.memory = SimpleNamespace(memory_stats_as_nested_dict=self.memory_stats_as_nested_dict)

    def check(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")

    def launch(self, seconds: float) -> None:
        """Give the current stream work."""
        self.stream.free_at = max(self.stream.free_at, self.now) + seconds

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    # --- as torch.cuda ------------------------------------------------------------------------------------------------

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        self.check()
        return self.capturing

    def current_device(self) -> int:
        return int(self.stream.device[-1])

    def device_count(self) -> int:
        return 8

    def get_device_properties(self, index: int) -> SimpleNamespace:
        if not self.initialized:
            raise AssertionError("a device was initialised")
        return SimpleNamespace(name=self.name, uuid=f"uuid-of-{index}")

    def current_stream(self) -> Stream:
        self.check()
        return self.stream

    def Event(self, enable_timing: bool = False) -> Event:
        self.events.append(Event(self, enable_timing))
        return self.events[-1]

    def mem_get_info(self) -> tuple[int, int]:
        self.check()
        return self.usage

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[Any, Any]:
        self.check()
        return self.stats
