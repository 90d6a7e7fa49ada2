"""A device that this process uses: what is done at both ends of a stage, and what is read at the end of a step."""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Final

from otel_rl.guard import attempt
from otel_rl.probes.device_time import DeviceClock, is_capturing
from otel_rl.probes.peaks import Peaks

USAGE_NS: Final = 1_000_000_000
"""The driver is asked at most so often what of the device is in use: its cost is not known, and it changes seldom."""


class DeviceInUse:
    """Its clock, the peaks that are made exact where the user wants that, and how full it is.

    Made when a reading finds the device in use for the first time; a process without a device never has one.
    """

    def __init__(self, device: Any, peaks: Peaks | None = None) -> None:
        self.clock = DeviceClock(device)
        self._peaks = peaks
        self._device = device
        self._asked_ns = 0

    def begin(self, stage: Any) -> None:
        """Do what is to be done at the begin of a stage; the clock begins last."""
        if self._peaks is not None:
            attempt("reset", "peaks of memory", self._peaks.begin, stage)
        self.clock.begin(stage)

    def end(self, stage: Any) -> None:
        """Do what is to be done at the end of a stage; the clock ends first."""
        self.clock.end(stage)
        if self._peaks is not None:
            attempt("read", "peaks of memory", self._peaks.end, stage)

    def usage(self) -> tuple[int, int] | None:
        """Say how many bytes of the device are free, and how many it has; None where that cannot be asked.

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

    def _usage(self) -> tuple[int, int] | None:
        ask = getattr(self._device, "mem_get_info", None)
        try:
            if ask is None or is_capturing(self._device):
                return None
            free, total = ask()
        except RuntimeError:  # the device has failed; the host hears of it from its own calls
            return None
        return int(free), int(total)
