"""The node and its accelerators at one moment, for the sidecar: no trainer pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

from otel_rl import vocabulary

MILLI = 1e-3


class Sample(NamedTuple):
    """One number."""

    name: str
    value: int | float
    labels: tuple[tuple[str, str], ...] = ()


class HostProbe:
    """CPU, memory and network of the node; CPU as the mean since the sample before."""

    def __init__(self) -> None:
        psutil.cpu_percent(None)

    def read(self) -> Iterator[Sample]:
        """Sample. Cost: 0.3 ms."""
        memory = psutil.virtual_memory()
        yield Sample(vocabulary.CPU_UTILIZATION, psutil.cpu_percent(None) / 100)
        yield Sample(vocabulary.CPU_LOAD, psutil.getloadavg()[0])
        yield Sample(vocabulary.SYSTEM_MEMORY, memory.total - memory.available)
        yield Sample(vocabulary.SYSTEM_MEMORY_LIMIT, memory.total)
        network = psutil.net_io_counters(nowrap=True)
        if network is not None:
            yield Sample(vocabulary.NETWORK_IO, network.bytes_recv, ((vocabulary.NETWORK_DIRECTION, "receive"),))
            yield Sample(vocabulary.NETWORK_IO, network.bytes_sent, ((vocabulary.NETWORK_DIRECTION, "transmit"),))


class DeviceProbe:
    """NVIDIA devices by NVML; none where there is no driver. What a device does not tell is left out."""

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._devices: list[tuple[Any, tuple[tuple[str, str], ...]]] = []
        if self._nvml is None:
            with suppress(ImportError):
                import pynvml

                self._nvml = pynvml
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlInit()
                for index in range(self._nvml.nvmlDeviceGetCount()):
                    with suppress(self._nvml.NVMLError):  # one that was lost takes no other with it
                        self._devices.append(self._device(index))

    def read(self) -> Iterator[Sample]:
        """Sample every device. Cost: about 1 ms a device."""
        for handle, labels in self._devices:
            for name, read in self._readers():
                with suppress(self._nvml.NVMLError):
                    yield Sample(name, read(handle), labels)
            for kind, clock in (("sm", self._nvml.NVML_CLOCK_SM), ("memory", self._nvml.NVML_CLOCK_MEM)):
                with suppress(self._nvml.NVMLError):
                    hertz = self._nvml.nvmlDeviceGetClockInfo(handle, clock) * 1_000_000
                    yield Sample(vocabulary.GPU_CLOCK, hertz, (*labels, (vocabulary.CLOCK_TYPE, kind)))

    def _readers(self) -> tuple[tuple[str, Any], ...]:
        nvml = self._nvml
        return (
            (vocabulary.GPU_UTILIZATION, lambda device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100),
            (vocabulary.GPU_MEMORY, lambda device: nvml.nvmlDeviceGetMemoryInfo(device).used),
            (vocabulary.GPU_MEMORY_LIMIT, lambda device: nvml.nvmlDeviceGetMemoryInfo(device).total),
            (vocabulary.POWER, lambda device: nvml.nvmlDeviceGetPowerUsage(device) * MILLI),
            (
                vocabulary.TEMPERATURE,
                lambda device: nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            ),
        )

    def _device(self, index: int) -> tuple[Any, tuple[tuple[str, str], ...]]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        labels = (
            (vocabulary.HW_ID, self._nvml.nvmlDeviceGetUUID(handle)),
            (vocabulary.HW_NAME, self._nvml.nvmlDeviceGetName(handle)),
            (vocabulary.HW_TYPE, "gpu"),
        )
        return handle, labels
