"""What goes in and out of an NVIDIA device, over PCIe and NVLink.

Source: nvml.h, ``NVML_FI_DEV_...``: counters of bytes since the driver was loaded. ``nvmlDeviceGetPcieThroughput`` is
for devices that have none: each call of it looks for 20 ms and says what went on in them.
"""

from __future__ import annotations

from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.probes.nvidia_readings import Device
from otel_rl.probes.sample import Sample

KIB: Final = 1024
KILO: Final = 1000
ALL_LINKS: Final = 0xFFFF_FFFF
"""Scope of a field of NVLink: the sum over the links of the device."""
PCIE, NVLINK = "pcie", "nvlink"
RECEIVE, TRANSMIT = "receive", "transmit"
Field = tuple[str, int, str, str, int]
FIELDS: Final[tuple[Field, ...]] = (
    ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, PCIE, RECEIVE, 1),
    ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, PCIE, TRANSMIT, 1),
    ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, NVLINK, RECEIVE, KIB),
    ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, NVLINK, TRANSMIT, KIB),
    ("NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", ALL_LINKS, NVLINK, RECEIVE, 1),  # the fifth NVLink counts here only
    ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", ALL_LINKS, NVLINK, TRANSMIT, 1),
)
"""Counters of bytes: NVML's name, scope, link, direction, bytes in its unit.

Of two for the same the first that answers is taken.
"""
VALUES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The part of the union that holds a value, by ``NVML_VALUE_TYPE_...``."""

NARROW: Final = VALUES.index("uiVal")
"""A counter of bytes in 32 bits, which nvml.h says may be wrapped: 4 GiB pass within a period, so nobody knows how
often it has begun anew, and it is as if it were not there."""


class Traffic:
    """Bytes over PCIe and NVLink, all in one call."""

    def __init__(self) -> None:
        self._fields = FIELDS
        self.counts_pcie = False

    def __call__(self, device: Device) -> list[Sample]:
        """Read. Cost: one call of the driver; fields that the device lacks are asked once."""
        nvml = device.nvml
        asked = [(getattr(nvml, name), scope) for name, scope, *_ in self._fields]
        answers = nvml.nvmlDeviceGetFieldValues(device.handle, asked) if asked else []
        found: list[Sample] = []
        kept: list[Field] = []
        counted: set[tuple[str, str]] = set()
        for field, answer in zip(self._fields, answers, strict=True):
            _, _, link, direction, unit = field
            if (link, direction) in counted or answer.nvmlReturn in _never(nvml):
                continue
            if answer.nvmlReturn == nvml.NVML_SUCCESS:
                if answer.valueType >= len(VALUES) or (unit == 1 and answer.valueType == NARROW):
                    continue
                count = getattr(answer.value, VALUES[answer.valueType]) * unit
                labels = (*device.labels, (vocabulary.LINK, link), (vocabulary.NETWORK_DIRECTION, direction))
                found.append(device.totals.sample(vocabulary.GPU_IO, count, labels))
                counted.add((link, direction))
                kept = [other for other in kept if other[2:4] != (link, direction)]  # it counts from elsewhere
            kept.append(field)
        self._fields = tuple(kept)
        self.counts_pcie = (PCIE, RECEIVE) in [field[2:4] for field in kept]
        return found

    def received(self, device: Device) -> list[Sample]:
        """Say what PCIe brings, where the device does not count it. Cost: the driver looks for 20 ms."""
        return self._window(device, RECEIVE, device.nvml.NVML_PCIE_UTIL_RX_BYTES)

    def transmitted(self, device: Device) -> list[Sample]:
        """Say what goes out over PCIe, likewise."""
        return self._window(device, TRANSMIT, device.nvml.NVML_PCIE_UTIL_TX_BYTES)

    def _window(self, device: Device, direction: str, which: int) -> list[Sample]:
        if self.counts_pcie:
            return []
        rate = device.nvml.nvmlDeviceGetPcieThroughput(device.handle, which) * KILO
        return [Sample(vocabulary.PCIE_THROUGHPUT, rate, (*device.labels, (vocabulary.NETWORK_DIRECTION, direction)))]


def _never(nvml: Any) -> tuple[int, ...]:
    return nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT
