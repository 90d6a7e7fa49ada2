"""Tests of what the sidecar reads of its node; NVML stands in with the functions, units and errors of nvidia-ml-py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.probes.node import DeviceProbe, HostProbe, Sample

LABELS = ((v.HW_ID, "GPU-1"), (v.HW_NAME, "NVIDIA H100 80GB HBM3"), (v.HW_TYPE, "gpu"))


class NVMLError(Exception):
    """As pynvml raises for whatever a device or driver does not tell."""


class Nvml:
    """The part of pynvml that is used; units as NVML has them: mW, MHz, percent, bytes, degrees."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, devices: int = 1, broken: tuple[str, ...] = ()) -> None:
        self.devices = devices
        self.broken = broken

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):

            def fail(*arguments: Any) -> None:
                raise NVMLError

            return fail
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return self.devices

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 7:
            raise NVMLError  # fell off the bus
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle + 1}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=87, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=85_899_345_920, used=64_424_509_440)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 612_345

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 63

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[clock]


def test_a_device_is_sampled_in_our_units() -> None:
    """Ratios, bytes, watts, degrees Celsius and hertz."""
    found = list(DeviceProbe(Nvml()).read())
    assert [
        Sample(v.GPU_UTILIZATION, 0.87, LABELS),
        Sample(v.GPU_MEMORY, 64_424_509_440, LABELS),
        Sample(v.GPU_MEMORY_LIMIT, 85_899_345_920, LABELS),
        Sample(v.POWER, pytest.approx(612.345), LABELS),
        Sample(v.TEMPERATURE, 63, LABELS),
        Sample(v.GPU_CLOCK, 1_980_000_000, (*LABELS, (v.CLOCK_TYPE, "sm"))),
        Sample(v.GPU_CLOCK, 2_619_000_000, (*LABELS, (v.CLOCK_TYPE, "memory"))),
    ] == found


def test_what_a_device_does_not_tell_is_left_out() -> None:
    """The others are there; a machine without a driver has none."""
    probe = DeviceProbe(Nvml(2, broken=("nvmlDeviceGetPowerUsage",)))
    assert 2 * 6 == len(list(probe.read()))
    assert [] == list(DeviceProbe(Nvml(broken=("nvmlInit",))).read())
    assert 7 * 7 == len(list(DeviceProbe(Nvml(8)).read()))


def test_the_real_nvml_raises_nothing() -> None:
    """Whatever this machine has."""
    for sample in DeviceProbe().read():
        assert sample.name in v.METRICS


def test_the_host_is_sampled() -> None:
    """Every name is in the vocabulary, ratios are ratios, and what is used is below what there is."""
    found = {(sample.name, *sample.labels): sample.value for sample in HostProbe().read()}
    assert set(v.METRICS) >= {name for name, *_ in found}
    assert 0 <= found[v.CPU_UTILIZATION,] <= 1
    assert 0 < found[v.SYSTEM_MEMORY,] < found[v.SYSTEM_MEMORY_LIMIT,]


@pytest.mark.gpu
def test_a_gpu_is_sampled() -> None:
    """The real thing."""
    found = {sample.name: sample.value for sample in DeviceProbe().read()}
    assert {v.GPU_UTILIZATION, v.GPU_MEMORY, v.GPU_MEMORY_LIMIT, v.TEMPERATURE} <= set(found)
    assert 0 <= found[v.GPU_UTILIZATION] <= 1
