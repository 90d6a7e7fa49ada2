"""What one NVIDIA device tells: a function for each question, so that one that is not answered takes no other with it.

Source: nvidia-ml-py 12.560 to 13.615, ``pynvml.py``. NVML gives percent, mW, mJ and MHz;
we give ratios, W, J and Hz.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.probes.sample import Labels, Sample, Totals

MILLI: Final = 1e-3
MEGA: Final = 1_000_000


@dataclass(frozen=True)
class Device:
    """A device, or the part of one that MIG cut off."""

    nvml: Any
    handle: Any
    labels: Labels
    totals: Totals
    whole: Any = None
    """Of a part: the handle of the device that it is a part of."""
    instance: int = 0
    """Of a part: its number there."""


Reading = Callable[[Device], list[Sample]]
"""Asks one question; raises ``NVMLError``."""


def utilization(device: Device) -> list[Sample]:
    """Say for which share of the driver's last window (1/6 to 1 s) a kernel ran."""
    rates = device.nvml.nvmlDeviceGetUtilizationRates(device.handle)
    return [Sample(vocabulary.GPU_UTILIZATION, rates.gpu / 100, device.labels)]


def memory(device: Device) -> list[Sample]:
    info = device.nvml.nvmlDeviceGetMemoryInfo(device.handle)
    return [
        Sample(vocabulary.GPU_MEMORY, info.used, device.labels),
        Sample(vocabulary.GPU_MEMORY_LIMIT, info.total, device.labels),
    ]


def power(device: Device) -> list[Sample]:
    """Say what it draws: the mean of a second on most devices."""
    return [Sample(vocabulary.POWER, device.nvml.nvmlDeviceGetPowerUsage(device.handle) * MILLI, device.labels)]


def energy(device: Device) -> list[Sample]:
    """Say what it used: differences are exact where ``power`` sees moments."""
    used = device.nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle) * MILLI
    return [device.totals.sample(vocabulary.ENERGY, used, device.labels)]


def temperature(device: Device) -> list[Sample]:
    degrees = device.nvml.nvmlDeviceGetTemperature(device.handle, device.nvml.NVML_TEMPERATURE_GPU)
    return [Sample(vocabulary.TEMPERATURE, degrees, device.labels)]


def sm_clock(device: Device) -> list[Sample]:
    return _clock(device, "sm", device.nvml.NVML_CLOCK_SM)


def memory_clock(device: Device) -> list[Sample]:
    return _clock(device, "memory", device.nvml.NVML_CLOCK_MEM)


def _clock(device: Device, kind: str, which: int) -> list[Sample]:
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
"""Reasons for a low clock that take nothing from anybody."""


def throttle(device: Device) -> list[Sample]:
    """Say which reasons hold the clock down at this moment; reasons that newer drivers know are ``other``."""
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


def _reason(device: Device, word: str, bits: int) -> Sample:
    return Sample(vocabulary.THROTTLE, int(bits != 0), (*device.labels, (vocabulary.THROTTLE_REASON, word)))


def corrected(device: Device) -> list[Sample]:
    return _ecc(device, "corrected", device.nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)


def uncorrected(device: Device) -> list[Sample]:
    return _ecc(device, "uncorrected", device.nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)


def _ecc(device: Device, kind: str, which: int) -> list[Sample]:
    count = device.nvml.nvmlDeviceGetTotalEccErrors(device.handle, which, device.nvml.NVML_VOLATILE_ECC)
    return [device.totals.sample(vocabulary.HW_ERRORS, count, (*device.labels, (vocabulary.ERROR_TYPE, kind)))]


SIMPLE: Final[tuple[Reading, ...]] = (
    utilization,
    memory,
    power,
    energy,
    temperature,
    sm_clock,
    memory_clock,
    throttle,
    corrected,
    uncorrected,
)
"""What a whole device is asked that needs nothing kept from one time to the next."""
