"""A device that this process uses: what is done at both ends of a stage, and what is read at the end of a step."""

from __future__ import annotations

from typing import Any, Final

from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.probes.device_time import DeviceClock, is_used, may_record
from otel_rl.probes.memory import Device, probes

OWN_EVERY_NS: Final = 4_000_000
"""Memory is read for one of a user's own stages in this time on average, since these may be many and short."""
OWN_AT_ONCE: Final = 512
"""This many of them are read at once, however short, if there were fewer before."""
UNUSED: Final = Device(0, 0, 0, 0)
USAGE_NS: Final = 1_000_000_000
"""Least time between two questions to the driver for what is in use: their cost is not known, and it changes seldom."""


class DeviceInUse:
    """Its clock, its memory, and how full it is.

    Made when a reading finds the device in use for the first time; a process without a device never has one.
    """

    def __init__(self, device: Any) -> None:
        self.clock = DeviceClock(device)
        self._device = device
        self._unread: set[Any] = set()
        """Open stages whose memory was not read at their begin, and is not at their end: one reading shows nothing."""
        self._unused_ns = probes.read_ns
        """When the device was last seen not to be in use, monotonic: the reading before the one that found it."""
        self._due_ns = 0
        """From when on the next of a user's own stages is read."""
        self._asked_ns = 0

    def begin(self, stage: Any) -> None:
        """Read memory at the begin of a stage; its clock begins last.

        No reading serves twice: to allocate takes no time, since the device works later, so what a program allocates
        between two stages, or in a short one, would be another stage's.
        """
        found = self.read() if stage.coarse or self._is_due() else None
        if found is None:
            self._unread.add(stage)
        else:
            stage.before = stage.before[0], found
        self.clock.begin(stage)

    def end(self, stage: Any) -> None:
        self.clock.end(stage)
        if stage in self._unread:
            self._unread.discard(stage)
        elif stage.before is not None:  # else a handler of a signal raised before it had begun
            text, begin = stage.before
            found = self.read(begin and begin.device)  # on another thread another one may be current
            stage.after = stage.after[0], found
            if begin is None and found is not None and stage.began <= self._unused_ns:
                stage.before = text, UNUSED._replace(device=found.device)

    def forget(self, stage: Any) -> None:
        self._unread.discard(stage)
        self.clock.forget(stage)

    def usage(self) -> tuple[int, int] | None:
        """Return how many bytes of the device are free, and how many it has; None where that cannot be asked.

        Other processes' use counts. Never asked while a graph is captured. Cost: a call of the driver.
        """
        return attempt("ask", "how full the device is", self._usage)

    def usage_now_and_then(self) -> tuple[int, int] | None:
        """Like ``usage``, but at most once a second; None in between."""
        now = monotonic_ns()
        if now - self._asked_ns < USAGE_NS:
            return None
        self._asked_ns = now
        return self.usage()

    def read(self, index: int | None = None) -> Device | None:
        """Return its allocator's numbers; None where they cannot be read."""
        return attempt("read", "memory of the device", self._memory, index)

    def _memory(self, index: int | None) -> Device | None:
        if probes.read_device is None or (index is None and not self._is_used()):
            return None
        found: Device | None = probes.read_device(index)
        return found

    def _is_used(self) -> bool:
        try:
            return is_used(self._device)
        except RuntimeError:  # the device has failed; the host hears of it from its own calls
            return False

    def _is_due(self) -> bool:
        now = monotonic_ns()
        if now < self._due_ns:
            return False
        self._due_ns = max(self._due_ns, now - (OWN_AT_ONCE - 1) * OWN_EVERY_NS) + OWN_EVERY_NS
        return True

    def _usage(self) -> tuple[int, int] | None:
        ask = getattr(self._device, "mem_get_info", None)
        try:
            if ask is None or not may_record(self._device):
                return None
            free, total = ask()
        except RuntimeError:  # the device has failed; the host hears of it from its own calls
            return None
        return int(free), int(total)
