"""The node and its devices, as the sidecar reads them."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.row import SEMCONV, attribute, metric

HW_ID: Final = attribute("hw.id", "string", "metric", "the device's own id", SEMCONV)
HW_NAME: Final = attribute("hw.name", "string", "metric", "the device's product name", SEMCONV)
HW_TYPE: Final = attribute("hw.type", "string", "metric", "`gpu`", SEMCONV)
CLOCK_TYPE: Final = attribute("hw.gpu.clock.type", "string", "metric", "`sm` or `memory`")
NETWORK_DIRECTION: Final = attribute("network.io.direction", "string", "metric", "`receive` or `transmit`", SEMCONV)

CPU_UTILIZATION: Final = metric("system.cpu.utilization", "gauge", "1", "share of all cores in use", SEMCONV)
CPU_LOAD: Final = metric("system.linux.cpu.load_1m", "gauge", "{thread}", "load average of a minute", SEMCONV)
SYSTEM_MEMORY: Final = metric("system.memory.usage", "gauge", "By", "memory of the node in use", SEMCONV)
SYSTEM_MEMORY_LIMIT: Final = metric("system.memory.limit", "gauge", "By", "memory of the node", SEMCONV)
NETWORK_IO: Final = metric("system.network.io", "counter", "By", "bytes by `network.io.direction`", SEMCONV)
GPU_UTILIZATION: Final = metric(
    "hw.gpu.utilization", "gauge", "1", "share of time in which a kernel ran; no measure of how busy it was", SEMCONV
)
GPU_MEMORY: Final = metric("hw.gpu.memory.usage", "gauge", "By", "device memory in use, by all processes", SEMCONV)
GPU_MEMORY_LIMIT: Final = metric("hw.gpu.memory.limit", "gauge", "By", "device memory", SEMCONV)
POWER: Final = metric("hw.power", "gauge", "W", "power drawn by the device", SEMCONV)
TEMPERATURE: Final = metric("hw.temperature", "gauge", "Cel", "temperature of the device", SEMCONV)
GPU_CLOCK: Final = metric("hw.gpu.clock", "gauge", "Hz", "clock by `hw.gpu.clock.type`")
