"""A driver of NVIDIA's that stands in: behind the real pynvml, whose functions, structures and errors stay as they are.

Every function has the name and the arguments of the one in ``libnvidia-ml.so.1``: it fills what ``byref`` hands over
and returns a code. One that is not here is missing in this driver.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

import pynvml
import pytest

GIB = 1 << 30
NAME = b"NVIDIA H100 80GB HBM3"


def handle(number: int) -> Any:
    """A pointer to somewhere; equal numbers are the same device."""
    return ctypes.cast(ctypes.c_void_p(number), pynvml.c_nvmlDevice_t)


def number(device: Any) -> int:
    """What a handle points to."""
    return ctypes.cast(device, ctypes.c_void_p).value or 0


class Driver:
    """Devices 1, 2, ... with what NVML says of them, in its units; ``fails`` makes a function (of a device) fail.

    Parts of a device that is cut are 101, 102, ... for device 1, the second of its places being empty.
    """

    def __init__(self, devices: int = 1, *, missing: tuple[str, ...] = (), is_cut: bool = False) -> None:
        self.devices = devices
        self.missing = set(missing)
        self.is_cut = is_cut
        self.fails: dict[str | tuple[str, int], int] = {}
        self.lost: set[int] = set()
        self.calls: Counter[str] = Counter()
        self.is_begun = False
        self.events: list[tuple[int, int]] = []
        self.watched: set[int] = set()
        self.energy = 1_000_000
        self.fields = {197: 5_000, 198: 6_000, 138: 10, 139: 20}
        self.unknown: set[int] = set()
        """Fields that fail."""
        self.types: dict[int, int] = {}
        """Of the values of fields that are no ``unsigned long long``."""
        self.ecc = [7, 0]
        self.reasons = pynvml.nvmlClocksEventReasonSwPowerCap
        self.taken: list[int] = []
        """Addresses of GPM's snapshots that were not given back."""

    def __getattr__(self, name: str) -> Any:
        function = None if name in self.missing else getattr(type(self), f"_{name}", None)
        if function is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            device = number(arguments[0]) if arguments and isinstance(arguments[0], pynvml.c_nvmlDevice_t) else 0
            if not self.is_begun and name != "nvmlInitWithFlags":
                return pynvml.NVML_ERROR_UNINITIALIZED
            if device in self.lost or device // 100 in self.lost:
                return pynvml.NVML_ERROR_GPU_IS_LOST
            code = self.fails.get((name, device), self.fails.get(name))
            return function(self, *arguments) or pynvml.NVML_SUCCESS if code is None else code

        return call

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Driver:
        """Be the library that pynvml has loaded."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self

    def restart(self) -> None:
        """Unload and load the driver: sessions are over, counters begin anew."""
        self.is_begun = False
        self.energy = 0

    def _nvmlInitWithFlags(self, flags: Any) -> None:
        self.is_begun = True

    def _nvmlShutdown(self) -> None:
        self.is_begun = False

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = self.devices

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int | None:
        if index.value + 1 in self.lost:
            return pynvml.NVML_ERROR_GPU_IS_LOST
        ctypes.pointer(device._obj)[0] = handle(index.value + 1)
        return None

    def _nvmlDeviceGetUUID(self, device: Any, text: Any, size: Any) -> None:
        part = number(device)
        text.value = b"GPU-%d" % part if part < 100 else b"MIG-%d" % part

    def _nvmlDeviceGetName(self, device: Any, text: Any, size: Any) -> None:
        text.value = NAME if number(device) < 100 else NAME + b" MIG 1g.10gb"

    def _nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> int | None:
        if self.is_cut:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        rates._obj.gpu, rates._obj.memory = 87, 40
        return None

    def _nvmlDeviceGetMemoryInfo(self, device: Any, info: Any) -> None:
        share = 8 if number(device) > 100 else 1
        info._obj.total, info._obj.used = 80 * GIB // share, 60 * GIB // share

    def _nvmlDeviceGetPowerUsage(self, device: Any, milliwatts: Any) -> None:
        milliwatts._obj.value = 612_500

    def _nvmlDeviceGetTotalEnergyConsumption(self, device: Any, millijoules: Any) -> None:
        millijoules._obj.value = self.energy

    def _nvmlDeviceGetTemperature(self, device: Any, sensor: Any, degrees: Any) -> None:
        degrees._obj.value = {pynvml.NVML_TEMPERATURE_GPU: 63}[sensor.value]

    def _nvmlDeviceGetClockInfo(self, device: Any, clock: Any, megahertz: Any) -> None:
        megahertz._obj.value = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[clock.value]

    def _nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, reasons: Any) -> None:
        reasons._obj.value = self.reasons

    def _nvmlDeviceGetTotalEccErrors(self, device: Any, kind: Any, since: Any, count: Any) -> None:
        assert since.value == pynvml.NVML_VOLATILE_ECC
        count._obj.value = self.ecc[kind.value]

    def _nvmlDeviceGetFieldValues(self, device: Any, count: Any, values: Any) -> None:
        for value in values._obj[: count.value]:
            of_links = 138 <= value.fieldId <= 141 or 201 <= value.fieldId <= 204
            assert value.scopeId == (0xFFFF_FFFF if of_links else 0)
            if value.fieldId not in self.fields:
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
                continue
            if value.fieldId in self.unknown:
                value.nvmlReturn = pynvml.NVML_ERROR_UNKNOWN
                continue
            value.valueType = self.types.get(value.fieldId, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
            value.value.ullVal = self.fields[value.fieldId]

    def _nvmlDeviceGetPcieThroughput(self, device: Any, counter: Any, kilobytes: Any) -> None:
        kilobytes._obj.value = {pynvml.NVML_PCIE_UTIL_TX_BYTES: 300, pynvml.NVML_PCIE_UTIL_RX_BYTES: 400}[counter.value]

    def _nvmlEventSetCreate(self, events: Any) -> None:
        ctypes.pointer(events._obj)[0] = ctypes.cast(ctypes.c_void_p(4711), pynvml.c_nvmlEventSet_t)

    def _nvmlDeviceGetSupportedEventTypes(self, device: Any, kinds: Any) -> None:
        kinds._obj.value = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeClock

    def _nvmlDeviceRegisterEvents(self, device: Any, kinds: Any, events: Any) -> None:
        assert kinds.value == pynvml.nvmlEventTypeXidCriticalError
        self.watched.add(number(device))

    def _nvmlEventSetWait_v2(self, events: Any, data: Any, milliseconds: Any) -> int | None:
        assert milliseconds.value == 0
        if not self.events:
            return pynvml.NVML_ERROR_TIMEOUT
        device, code = self.events.pop(0)
        data._obj.device = handle(device)
        data._obj.eventType, data._obj.eventData = pynvml.nvmlEventTypeXidCriticalError, code
        return None

    def _nvmlEventSetFree(self, events: Any) -> None:
        self.watched.clear()

    def _nvmlDeviceGetMigMode(self, device: Any, now: Any, pending: Any) -> None:
        now._obj.value = pending._obj.value = int(self.is_cut)

    def _nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> None:
        count._obj.value = 3

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, place: Any, part: Any) -> int | None:
        if place.value == 1:
            return pynvml.NVML_ERROR_NOT_FOUND
        ctypes.pointer(part._obj)[0] = handle(100 * number(device) + place.value + 1)
        return None

    def _nvmlDeviceGetGpuInstanceId(self, part: Any, instance: Any) -> None:
        instance._obj.value = number(part) + 1000

    def _nvmlGpmQueryDeviceSupport(self, device: Any, support: Any) -> None:
        support._obj.isSupportedDevice = 1

    def _nvmlGpmSampleAlloc(self, sample: Any) -> None:
        self.taken.append(len(self.taken) + 9000)
        ctypes.pointer(sample._obj)[0] = ctypes.cast(ctypes.c_void_p(self.taken[-1]), pynvml.c_nvmlGpmSample_t)

    def _nvmlGpmSampleFree(self, sample: Any) -> None:
        self.taken.remove(ctypes.cast(sample, ctypes.c_void_p).value or 0)

    def _nvmlGpmSampleGet(self, device: Any, sample: Any) -> int | None:
        return pynvml.NVML_ERROR_NOT_SUPPORTED if self.is_cut else None

    def _nvmlGpmMigSampleGet(self, device: Any, instance: Any, sample: Any) -> None:
        assert number(device) < 100 < instance

    def _nvmlGpmMetricsGet(self, request: Any) -> None:
        known = {
            pynvml.NVML_GPM_METRIC_SM_UTIL: 75.0,
            pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 50.0,
            pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 25.0,
        }
        asked = request._obj
        assert asked.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        assert ctypes.cast(asked.sample1, ctypes.c_void_p).value != ctypes.cast(asked.sample2, ctypes.c_void_p).value
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn, metric.value = pynvml.NVML_SUCCESS, known[metric.metricId]
