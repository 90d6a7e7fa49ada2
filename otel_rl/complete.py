"""What a finished stage still lacks is added off the hot path: memory in bytes, and the collectives inside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from otel_rl import vocabulary
from otel_rl.probes.memory import Device, Reading, host
from otel_rl.records import Value

ASYNCHRONOUS = frozenset(
    (
        vocabulary.LOGPROB,
        vocabulary.VALUE,
        vocabulary.ADVANTAGE,
        vocabulary.FORWARD,
        vocabulary.BACKWARD,
        vocabulary.CLIP,
        vocabulary.OPTIMIZER,
        vocabulary.COMM,
    )
)
"""Stages whose work an accelerator does later than the host asks for it: their host duration is that of the launch."""


def clock_attributes(name: str) -> dict[str, Value]:
    """Say of a stage with an accelerator that its duration is the host's."""
    return {vocabulary.CLOCK: "host"} if name in ASYNCHRONOUS else {}


@lru_cache(256)
def memory_attributes(before: Reading | None, after: Reading | None) -> Mapping[str, Value]:
    """Turn the readings at both ends of a stage into attributes; kept, because memory often stands still.

    A reading is at most 10 ms old (``probes.memory.FRESH_NS``), so both ends of a short stage may say the same.
    A peak is exact only where the stage raised the process's own peak: then the new peak is the stage's. Otherwise the
    larger end is a lower bound. No peak is ever reset. Source: facts on training, section 3.2.
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
        attributes.update(_device_attributes(before[1] or Device(0, 0, 0, 0), after[1]))
    return attributes


def _device_attributes(start: Device, end: Device) -> dict[str, Value]:
    allocated_raised = end.allocated_peak > start.allocated_peak
    reserved_raised = end.reserved_peak > start.reserved_peak
    return {
        vocabulary.ALLOCATED_START: start.allocated,
        vocabulary.ALLOCATED_END: end.allocated,
        vocabulary.RESERVED_START: start.reserved,
        vocabulary.RESERVED_END: end.reserved,
        vocabulary.ALLOCATED_PEAK: end.allocated_peak if allocated_raised else max(start.allocated, end.allocated),
        vocabulary.ALLOCATED_PEAK_EXACT: allocated_raised,
        vocabulary.RESERVED_PEAK: end.reserved_peak if reserved_raised else max(start.reserved, end.reserved),
        vocabulary.RESERVED_PEAK_EXACT: reserved_raised,
    }
