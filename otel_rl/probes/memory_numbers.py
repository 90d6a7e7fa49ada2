"""Raw readings of memory become attributes of stages and points of steps, off the hot path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from otel_rl import vocabulary
from otel_rl.analysis.memory import fragmentation, non_torch, rounding, slack, stage_peak
from otel_rl.probes.memory import Device, Reading, host
from otel_rl.records import Point, Value


@lru_cache(256)
def memory_attributes(before: Reading | None, after: Reading | None) -> Mapping[str, Value]:
    """Turn the readings at both ends of a stage into attributes; kept, because memory often stands still.

    A reading of the host is at most 10 ms old (``probes.memory.FRESH_NS``), so both ends of a short stage may say the
    same; that of a device is the stage's own. A peak is exact only where the stage raised the process's own peak: then
    the new peak is the stage's. Otherwise the larger end is a lower bound; no peak is reset for it.
    """
    if before is None or after is None:
        return {}
    (start_vms, start_rss), (end_vms, end_rss) = host(before[0]), host(after[0])
    attributes: dict[str, Value] = {}
    if start_rss and end_rss:
        attributes = {
            vocabulary.RSS_START: start_rss,
            vocabulary.RSS_END: end_rss,
            vocabulary.VMS_START: start_vms,
            vocabulary.VMS_END: end_vms,
        }
    if after[1] is not None:
        attributes.update(_device_attributes(before[1], after[1]))
    return attributes


def _device_attributes(start: Device | None, end: Device) -> dict[str, Value]:
    if start is None or start.device != end.device:
        return {
            vocabulary.ALLOCATED_END: end.allocated,
            vocabulary.RESERVED_END: end.reserved,
            vocabulary.ALLOCATED_PEAK: end.allocated,
            vocabulary.ALLOCATED_PEAK_EXACT: False,
            vocabulary.RESERVED_PEAK: end.reserved,
            vocabulary.RESERVED_PEAK_EXACT: False,
        }
    allocated = stage_peak(start.allocated_peak, end.allocated_peak, start.allocated, end.allocated)
    reserved = stage_peak(start.reserved_peak, end.reserved_peak, start.reserved, end.reserved)
    return {
        vocabulary.ALLOCATED_START: start.allocated,
        vocabulary.ALLOCATED_END: end.allocated,
        vocabulary.RESERVED_START: start.reserved,
        vocabulary.RESERVED_END: end.reserved,
        vocabulary.ALLOCATED_PEAK: allocated.low,
        vocabulary.ALLOCATED_PEAK_EXACT: end.allocated_peak > start.allocated_peak,
        vocabulary.RESERVED_PEAK: reserved.low,
        vocabulary.RESERVED_PEAK_EXACT: end.reserved_peak > start.reserved_peak,
    }


def host_points(reading: Reading, time_ns: int) -> list[Point]:
    """Return the memory of the process at one moment; nothing where it cannot be read."""
    virtual, resident = host(reading[0])
    if not resident:
        return []
    return [Point(vocabulary.RSS, resident, time_ns), Point(vocabulary.VMS, virtual, time_ns)]


def device_points(device: Device, usage: tuple[int, int] | None, time_ns: int) -> Iterator[Point]:
    """Return what the memory of a device consisted of at the end of a step; what is not known is left out."""
    is_counted = device.active is None or device.active >= device.allocated  # cudaMallocAsync leaves them at 0
    split = device.inactive_split if is_counted else None
    rounded = rounding(device.requested, device.allocated)
    values = {
        vocabulary.ALLOCATED: device.allocated,
        vocabulary.RESERVED: device.reserved,
        vocabulary.ACTIVE: device.active if is_counted else None,
        vocabulary.REQUESTED: None if rounded is None else device.requested,
        vocabulary.INACTIVE_SPLIT: split,
        vocabulary.NON_TORCH: non_torch(usage, device.reserved),
        vocabulary.FRAGMENTATION: fragmentation(split, device.reserved),
        vocabulary.SLACK: slack(device.allocated, device.reserved),
        vocabulary.ROUNDING: rounded,
    }
    return (Point(name, value, time_ns) for name, value in values.items() if value is not None)
