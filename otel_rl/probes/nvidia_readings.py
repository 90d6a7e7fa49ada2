"""What one NVIDIA device reports: a function for each question, so that one that fails takes no other with it.

Source: nvidia-ml-py 12.560 to 13.615, ``pynvml.py``, and nvml.h. NVML gives percent, mW, mJ and MHz; we give ratios, W,
J and Hz.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.probes.sample import Sample, SampleLabels, Totals

MILLI: Final = 1e-3
KIB: Final = 1024
KILO: Final = 1000
MEGA: Final = 1_000_000


@dataclass(frozen=True)
class NvidiaDevice:
    """A device, or the part of one that MIG cut off."""

    nvml: Any
    handle: Any
    labels: SampleLabels
    totals: Totals
    whole: Any = None
    """The handle of the whole device, if this is a part."""
    instance: int = 0
    """The number of this part in the whole device."""


Question = Callable[[NvidiaDevice], list[Sample]]
"""Asks one question; raises ``NVMLError``."""


def utilization(device: NvidiaDevice) -> list[Sample]:
    """Return in which share of the driver's last window (1/6 to 1 s) a kernel ran."""
    rates = device.nvml.nvmlDeviceGetUtilizationRates(device.handle)
    return [Sample(vocabulary.GPU_UTILIZATION, rates.gpu / 100, device.labels)]


def memory(device: NvidiaDevice) -> list[Sample]:
    info = device.nvml.nvmlDeviceGetMemoryInfo(device.handle)
    return [
        Sample(vocabulary.GPU_MEMORY, info.used, device.labels),
        Sample(vocabulary.GPU_MEMORY_LIMIT, info.total, device.labels),
    ]


def power(device: NvidiaDevice) -> list[Sample]:
    """Return the mean of the last second, on most devices."""
    return [Sample(vocabulary.POWER, device.nvml.nvmlDeviceGetPowerUsage(device.handle) * MILLI, device.labels)]


def energy(device: NvidiaDevice) -> list[Sample]:
    used = device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle) * MILLI
    return [device.totals.sample(vocabulary.ENERGY, used, device.labels)]


def temperature(device: NvidiaDevice) -> list[Sample]:
    degrees = device.nvml.nvmlDeviceGetTemperature(device.handle, device.nvml.NVML_TEMPERATURE_GPU)
    return [Sample(vocabulary.TEMPERATURE, degrees, device.labels)]


def sm_clock(device: NvidiaDevice) -> list[Sample]:
    return _clock(device, "sm", device.nvml.NVML_CLOCK_SM)


def memory_clock(device: NvidiaDevice) -> list[Sample]:
    return _clock(device, "memory", device.nvml.NVML_CLOCK_MEM)


def _clock(device: NvidiaDevice, kind: str, which: int) -> list[Sample]:
    hertz = device.nvml.nvmlDeviceGetClockInfo(device.handle, which) * MEGA
    return [Sample(vocabulary.HW_CLOCK, hertz, (*device.labels, (vocabulary.CLOCK_TYPE, kind)))]


THROTTLE_REASONS: Final = (
    ("power_cap", "nvmlClocksEventReasonSwPowerCap"),
    ("thermal_software", "nvmlClocksEventReasonSwThermalSlowdown"),
    ("thermal_hardware", "nvmlClocksEventReasonHwThermalSlowdown"),
    ("power_brake", "nvmlClocksEventReasonHwPowerBrakeSlowdown"),
    ("hardware", "nvmlClocksEventReasonHwSlowdown"),
    ("sync_boost", "nvmlClocksEventReasonSyncBoost"),
    ("application", "nvmlClocksEventReasonApplicationsClocksSetting"),
)
NO_THROTTLE: Final = ("nvmlClocksEventReasonGpuIdle", "nvmlClocksEventReasonDisplayClockSetting")
"""Reasons for a low clock that slow nothing down."""


def throttle(device: NvidiaDevice) -> list[Sample]:
    """Return which reasons hold the clock down at this moment; reasons that newer drivers know are ``other``."""
    nvml = device.nvml
    reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(device.handle)
    found = []
    for word, constant in THROTTLE_REASONS:
        bit = getattr(nvml, constant)
        found.append(_reason(device, word, reasons & bit))
        reasons &= ~bit
    for constant in NO_THROTTLE:
        reasons &= ~getattr(nvml, constant)
    return [*found, _reason(device, "other", reasons)]


def _reason(device: NvidiaDevice, word: str, bits: int) -> Sample:
    return Sample(vocabulary.THROTTLE, int(bits != 0), (*device.labels, (vocabulary.THROTTLE_REASON, word)))


def corrected(device: NvidiaDevice) -> list[Sample]:
    return _memory_errors(device, "corrected", device.nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)


def uncorrected(device: NvidiaDevice) -> list[Sample]:
    return _memory_errors(device, "uncorrected", device.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)


def _memory_errors(device: NvidiaDevice, kind: str, which: int) -> list[Sample]:
    count = device.nvml.nvmlDeviceGetTotalEccErrors(device.handle, which, device.nvml.NVML_VOLATILE_ECC)
    return [device.totals.sample(vocabulary.HW_ERRORS, count, (*device.labels, (vocabulary.ERROR_TYPE, kind)))]


SIMPLE: Final[tuple[Question, ...]] = (
    utilization, memory, power, energy, temperature, sm_clock, memory_clock, throttle, corrected, uncorrected,
)  # fmt: skip
"""Questions to a whole device that need no memory of their own."""

# --- what goes in and out over PCIe and NVLink ------------------------------------------------------------------------

ALL_LINKS: Final = 0xFFFF_FFFF
"""Scope of a field of NVLink: the sum over the links of the device."""
PCIE, NVLINK = "pcie", "nvlink"
RECEIVE, TRANSMIT = "receive", "transmit"
Field = tuple[str, int, str, str, int]
"""NVML's name, scope, link, direction, and bytes in its unit."""
FIELDS: Final[tuple[Field, ...]] = (
    ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, PCIE, RECEIVE, 1),
    ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, PCIE, TRANSMIT, 1),
    ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, NVLINK, RECEIVE, KIB),
    ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, NVLINK, TRANSMIT, KIB),
    ("NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES", ALL_LINKS, NVLINK, RECEIVE, 1),  # the fifth NVLink counts here only
    ("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", ALL_LINKS, NVLINK, TRANSMIT, 1),
)
"""Counters of bytes; of two for the same the first that answers counts."""
VALUES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The part of the union that holds a value, by ``NVML_VALUE_TYPE_...``."""
NARROW: Final = VALUES.index("uiVal")
"""A counter of bytes in 32 bits is ignored: it wraps every 4 GiB, which pass within one period."""


class Traffic:
    """Bytes over PCIe and NVLink, all in one call."""

    def __init__(self) -> None:
        self._fields = FIELDS
        self.counts_pcie = False

    def __call__(self, device: NvidiaDevice) -> list[Sample]:
        """Read. Cost: one call of the driver; fields that the device lacks are asked once."""
        nvml = device.nvml
        never = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT
        asked = [(getattr(nvml, name), scope) for name, scope, *_ in self._fields]
        answers = nvml.nvmlDeviceGetFieldValues(device.handle, asked) if asked else []
        found: list[Sample] = []
        kept: list[Field] = []
        counted: set[tuple[str, str]] = set()
        for field, answer in zip(self._fields, answers, strict=True):
            _, _, link, direction, unit = field
            if (link, direction) in counted or answer.nvmlReturn in never:
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

    def received(self, device: NvidiaDevice) -> list[Sample]:
        """Return the rate over PCIe where the device does not count bytes. Cost: the driver measures for 20 ms."""
        return self._rate(device, RECEIVE, device.nvml.NVML_PCIE_UTIL_RX_BYTES)

    def transmitted(self, device: NvidiaDevice) -> list[Sample]:
        return self._rate(device, TRANSMIT, device.nvml.NVML_PCIE_UTIL_TX_BYTES)

    def _rate(self, device: NvidiaDevice, direction: str, which: int) -> list[Sample]:
        if self.counts_pcie:
            return []
        rate = device.nvml.nvmlDeviceGetPcieThroughput(device.handle, which) * KILO
        return [Sample(vocabulary.PCIE_THROUGHPUT, rate, (*device.labels, (vocabulary.NETWORK_DIRECTION, direction)))]
