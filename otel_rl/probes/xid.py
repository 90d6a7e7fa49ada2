"""NVIDIA's critical errors (XID): what the driver also writes into the kernel's log, counted by number.

Source: nvml.h, "Event Handling Methods". The driver keeps events for us from the moment that a device is watched, and
gives them one by one; those from before are not known.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.probes.sample import Labels, Sample

MOST: Final = 256
"""Events that are taken at once; the others wait for the next time."""
CODES: Final = 64
"""Numbers of errors that become labels."""

Counts = Counter[tuple[Labels, str]]


class Xids:
    """The events of all devices of one session with the driver.

    Raises:
        NVMLError: this driver has no events.
    """

    def __init__(self, nvml: Any, counts: Counts) -> None:
        self._nvml = nvml
        self._counts = counts
        self._devices: dict[int | None, Labels] = {}
        self._set = nvml.nvmlEventSetCreate()

    def watch(self, handle: Any, labels: Labels) -> None:
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            wanted = nvml.nvmlDeviceGetSupportedEventTypes(handle) & nvml.nvmlEventTypeXidCriticalError
            if wanted:
                nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
                self._devices[_address(handle)] = labels

    def read(self) -> Iterator[Sample]:
        """Count what has happened, without waiting. Cost: one call of the driver, and one for each event."""
        with suppress(self._nvml.NVMLError):  # NVMLError_Timeout: there are no more; any other: perhaps next time
            for _ in range(MOST if self._devices else 0):
                self._count(self._nvml.nvmlEventSetWait(self._set, 0))
        for (labels, code), count in self._counts.items():
            yield Sample(vocabulary.XID, count, (*labels, (vocabulary.XID_CODE, code)))

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._set)

    def _count(self, event: Any) -> None:
        labels = self._devices.get(_address(event.device))
        if labels is None or not event.eventType & self._nvml.nvmlEventTypeXidCriticalError:
            return
        code = str(event.eventData)
        if (labels, code) not in self._counts and len({code for _, code in self._counts}) >= CODES:
            code = "other"
        self._counts[labels, code] += 1


def _address(handle: Any) -> int | None:
    """Two handles of a device are two objects that point to the same place."""
    return ctypes.cast(handle, ctypes.c_void_p).value
