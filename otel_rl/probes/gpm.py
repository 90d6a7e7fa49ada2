"""How busy an NVIDIA device was, by its own counters (GPM: Hopper and newer).

Source: nvml.h, "GPM": a sample is a snapshot of counters, and a metric is their mean between two snapshots, which must
lie 100 ms apart at least. It needs neither root nor the profiler, and disturbs none that runs.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.clock import monotonic
from otel_rl.probes.nvidia_readings import NvidiaDevice
from otel_rl.probes.sample import Sample

APART_S: Final = 0.1
METRICS: Final = (
    (vocabulary.SM_ACTIVITY, "NVML_GPM_METRIC_SM_UTIL"),
    (vocabulary.TENSOR_ACTIVITY, "NVML_GPM_METRIC_ANY_TENSOR_UTIL"),
    (vocabulary.DRAM_UTILIZATION, "NVML_GPM_METRIC_DRAM_BW_UTIL"),
)


class GpmActivity:
    """The activity of one device since the reading before; the first reading gives none."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: list[Any] = []
        """The snapshot of the reading before, and the place for the next one."""
        self._sampled_s = -math.inf
        self._request = nvml.c_nvmlGpmMetricsGet_t()  # 19 kB
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, (_, theirs) in enumerate(METRICS):
            self._request.metrics[place].metricId = getattr(nvml, theirs)

    def __call__(self, device: NvidiaDevice) -> list[Sample]:
        """Read. Cost: two calls of the driver, at first four."""
        nvml, whole = self._nvml, device.whole or device.handle
        if not self._samples:
            if not nvml.nvmlGpmQueryDeviceSupport(whole).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        before, now = self._samples
        now_s = monotonic()
        if now_s - self._sampled_s < APART_S:  # a closing process reads twice
            return []
        if device.whole is None:
            nvml.nvmlGpmSampleGet(whole, now)
        else:
            nvml.nvmlGpmMigSampleGet(whole, device.instance, now)
        had_before, self._sampled_s = self._sampled_s > -math.inf, now_s
        self._samples = [now, before]
        return self._between(before, now, device) if had_before else []

    def close(self) -> None:
        samples, self._samples = self._samples, []
        for sample in samples:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)

    def _between(self, before: Any, now: Any, device: NvidiaDevice) -> list[Sample]:
        self._request.sample1, self._request.sample2 = before, now
        self._nvml.nvmlGpmMetricsGet(self._request)
        found = []
        for place, (name, _) in enumerate(METRICS):
            metric = self._request.metrics[place]
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and math.isfinite(metric.value):
                found.append(Sample(name, metric.value / 100, device.labels))
        return found
