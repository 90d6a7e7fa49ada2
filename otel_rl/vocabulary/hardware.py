"""The node and its devices, as the sidecar reads them: the same names for every vendor.

The node's own are no ``system.*``: by the conventions those have states, modes and interfaces, and a Collector's
``host_metrics`` beside the sidecar writes them.
"""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import SEMCONV, counter, gauge, label

HW_ID: Final = label(
    "hw.id", "the device's own id (NVIDIA: its UUID, Ascend: its die's); of a rank the device that it uses", SEMCONV
)
HW_NAME: Final = label("hw.name", "the device's product name", SEMCONV)
HW_TYPE: Final = label("hw.type", "`gpu`", SEMCONV)
HW_PARENT: Final = label("hw.parent", "for a part (MIG) the id of the whole device", SEMCONV)
HW_STATE: Final = label("hw.state", "`ok` or `failed`", SEMCONV)
NETWORK_DIRECTION: Final = label("network.io.direction", "`receive` or `transmit`", SEMCONV)
CLOCK_TYPE: Final = label("rl.hw.clock.type", "`sm` or `memory`")
LINK: Final = label("rl.hw.link", "`pcie` or `nvlink`")
THROTTLE_REASON: Final = label(
    "rl.hw.throttle.reason",
    "`power_cap`, `thermal_software`, `thermal_hardware`, `power_brake`, `hardware` (one of the previous two), "
    "`sync_boost`, `application` (clocks set by a user) or `other`",
)
XID_CODE: Final = label("rl.hw.xid.code", "NVIDIA's number of the error; 64 of them, then `other`")

CPU_UTILIZATION: Final = gauge("rl.node.cpu.utilization", "1", "share of all cores in use")
CPU_LOAD: Final = gauge("rl.node.cpu.load_1m", "{thread}", "load average of a minute")
NODE_MEMORY: Final = gauge("rl.node.memory.usage", "By", "memory of the node in use")
NODE_MEMORY_LIMIT: Final = gauge("rl.node.memory.limit", "By", "memory of the node")
NETWORK_IO: Final = counter(
    "rl.node.network.io", "By", "bytes of all interfaces but loopback by `network.io.direction` since the sidecar began"
)
GPU_UTILIZATION: Final = gauge(
    "hw.gpu.utilization", "1", "share of time in which a kernel ran; no measure of how busy it was", SEMCONV
)
GPU_MEMORY: Final = gauge("hw.gpu.memory.usage", "By", "device memory in use, by all processes", SEMCONV)
GPU_MEMORY_LIMIT: Final = gauge("hw.gpu.memory.limit", "By", "device memory", SEMCONV)
GPU_IO: Final = counter(
    "hw.gpu.io", "By", "bytes by `rl.hw.link` and `network.io.direction`, since the sidecar began", SEMCONV
)
POWER: Final = gauge("hw.power", "W", "power drawn by the device", SEMCONV)
ENERGY: Final = counter("hw.energy", "J", "energy that the device used since the sidecar began", SEMCONV)
TEMPERATURE: Final = gauge("hw.temperature", "Cel", "temperature of the device", SEMCONV)
HW_ERRORS: Final = counter(
    "hw.errors",
    "{error}",
    "memory errors by `error.type` (`corrected`, `uncorrected`) since the sidecar began",
    SEMCONV,
)
HW_STATUS: Final = gauge("hw.status", "", "1 for the device's `hw.state`, 0 for the other state", SEMCONV)
HW_CLOCK: Final = gauge("rl.hw.clock", "Hz", "clock by `rl.hw.clock.type`")
THROTTLE: Final = gauge("rl.hw.throttle", "", "1 if the device's clock was lowered for `rl.hw.throttle.reason`, else 0")
PCIE_THROUGHPUT: Final = gauge(
    "rl.hw.pcie.throughput", "By/s", "bytes per second in a window of 20 ms, of devices that do not count bytes of PCIe"
)
XID: Final = counter("rl.hw.xid", "{error}", "NVIDIA's critical errors by `rl.hw.xid.code`, since the sidecar began")
SM_ACTIVITY: Final = gauge("rl.hw.sm.activity", "1", "share of the multiprocessors that were busy since the last point")
TENSOR_ACTIVITY: Final = gauge(
    "rl.hw.tensor.activity", "1", "share of time with tensor cores at work since the last point"
)
DRAM_UTILIZATION: Final = gauge("rl.hw.dram.utilization", "1", "share of memory bandwidth used since the last point")
