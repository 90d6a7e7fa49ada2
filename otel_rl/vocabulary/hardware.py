"""The node and its devices, as the sidecar reads them: the same names for every vendor.

The node's own are no ``system.*``: by the conventions those have states, modes and interfaces, and a Collector's
``host_metrics`` beside the sidecar writes them.
"""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import SEMCONV, attribute, metric

HW_ID: Final = attribute(
    "hw.id", "string", "metric", "the device's own id (NVIDIA: its UUID); in a rank's resource the one it uses", SEMCONV
)
HW_NAME: Final = attribute("hw.name", "string", "metric", "the device's product name", SEMCONV)
HW_TYPE: Final = attribute("hw.type", "string", "metric", "`gpu`", SEMCONV)
HW_PARENT: Final = attribute("hw.parent", "string", "metric", "of a part (MIG): the whole device's id", SEMCONV)
HW_STATE: Final = attribute("hw.state", "string", "metric", "`ok` or `failed`", SEMCONV)
NETWORK_DIRECTION: Final = attribute("network.io.direction", "string", "metric", "`receive` or `transmit`", SEMCONV)
CLOCK_TYPE: Final = attribute("rl.hw.clock.type", "string", "metric", "`sm` or `memory`")
LINK: Final = attribute("rl.hw.link", "string", "metric", "`pcie` or `nvlink`")
THROTTLE_REASON: Final = attribute(
    "rl.hw.throttle.reason",
    "string",
    "metric",
    "`power_cap`, `thermal_software`, `thermal_hardware`, `power_brake`, `hardware` (one of the two before), "
    "`sync_boost`, `application` (clocks that somebody set) or `other`",
)
XID_CODE: Final = attribute(
    "rl.hw.xid.code", "string", "metric", "NVIDIA's number of the error; 64 of them, then `other`"
)

CPU_UTILIZATION: Final = metric("rl.node.cpu.utilization", "gauge", "1", "share of all cores in use")
CPU_LOAD: Final = metric("rl.node.cpu.load_1m", "gauge", "{thread}", "load average of a minute")
NODE_MEMORY: Final = metric("rl.node.memory.usage", "gauge", "By", "memory of the node in use")
NODE_MEMORY_LIMIT: Final = metric("rl.node.memory.limit", "gauge", "By", "memory of the node")
NETWORK_IO: Final = metric(
    "rl.node.network.io",
    "counter",
    "By",
    "bytes of all interfaces but loopback by `network.io.direction`, since the sidecar began",
)
GPU_UTILIZATION: Final = metric(
    "hw.gpu.utilization", "gauge", "1", "share of time in which a kernel ran; no measure of how busy it was", SEMCONV
)
GPU_MEMORY: Final = metric("hw.gpu.memory.usage", "gauge", "By", "device memory in use, by all processes", SEMCONV)
GPU_MEMORY_LIMIT: Final = metric("hw.gpu.memory.limit", "gauge", "By", "device memory", SEMCONV)
GPU_IO: Final = metric(
    "hw.gpu.io", "counter", "By", "bytes by `rl.hw.link` and `network.io.direction`, since the sidecar began", SEMCONV
)
POWER: Final = metric("hw.power", "gauge", "W", "power drawn by the device", SEMCONV)
ENERGY: Final = metric("hw.energy", "counter", "J", "energy that the device used since the sidecar began", SEMCONV)
TEMPERATURE: Final = metric("hw.temperature", "gauge", "Cel", "temperature of the device", SEMCONV)
HW_ERRORS: Final = metric(
    "hw.errors",
    "counter",
    "{error}",
    "memory errors by `error.type`: `corrected` or `uncorrected`, since the sidecar began",
    SEMCONV,
)
HW_STATUS: Final = metric(
    "hw.status", "gauge", "", "1 for the `hw.state` that the device is in, 0 for the other", SEMCONV
)
HW_CLOCK: Final = metric("rl.hw.clock", "gauge", "Hz", "clock by `rl.hw.clock.type`")
THROTTLE: Final = metric(
    "rl.hw.throttle", "gauge", "", "1 where the device's clock was held down for `rl.hw.throttle.reason`, else 0"
)
PCIE_THROUGHPUT: Final = metric(
    "rl.hw.pcie.throughput", "gauge", "By/s", "in a window of 20 ms; only of devices that count no bytes of PCIe"
)
XID: Final = metric(
    "rl.hw.xid", "counter", "{error}", "NVIDIA's critical errors by `rl.hw.xid.code`, since the sidecar began"
)
SM_ACTIVITY: Final = metric(
    "rl.hw.sm.activity", "gauge", "1", "share of the streaming multiprocessors that were busy, since the point before"
)
TENSOR_ACTIVITY: Final = metric(
    "rl.hw.tensor.activity", "gauge", "1", "share of time that tensor cores worked, since the point before"
)
DRAM_UTILIZATION: Final = metric(
    "rl.hw.dram.utilization", "gauge", "1", "share of the memory's bandwidth in use, since the point before"
)
