"""What a device's memory consists of: fragmentation, slack, rounding, memory outside of torch, peaks of stages.

A number that is not known is None, and what follows from it is None: never 0, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = 1 << 62
"""More than any device has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBytes:
    """One reading of a caching allocator and of its device, in bytes."""

    allocated: int
    """Live tensors, rounded up to blocks."""
    reserved: int
    """Memory that the allocator holds of the device."""
    inactive_split: int | None = None
    """Free parts of blocks that are in use elsewhere; they cannot be given back."""
    requested: int | None = None
    """Live tensors without rounding; Ascend does not keep it."""
    free: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Composition:
    """One reading as ratios 0..1 and bytes."""

    fragmentation: float | None
    """Inactive split / reserved: free, but unusable for a larger tensor."""
    slack: float | None
    """(reserved - allocated) / reserved: all free memory of the allocator, with the reusable cache."""
    rounding: float | None
    """1 - requested / allocated: what rounding up to blocks costs."""
    non_torch: int | None
    """Bytes in use below torch: communication buffers, an engine's own pool, the context, other processes."""


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The highest value within a stage, bytes: exact, or bounds of it."""

    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Whether the bounds are equal, as they are if the stage raised the process's own peak."""
        return self.low == self.high


def composition(reading: DeviceBytes) -> Composition:
    """Return what a reading consists of."""
    is_split_known = reading.inactive_split is not None and reading.reserved > 0
    return Composition(
        fragmentation=(reading.inactive_split or 0) / reading.reserved if is_split_known else None,
        slack=(reading.reserved - reading.allocated) / reading.reserved if reading.reserved > 0 else None,
        rounding=_rounding(reading),
        non_torch=_non_torch(reading),
    )


def stage_peak(peak_before: int, peak_after: int, before: int, after: int) -> MemoryPeak:
    """Bound the peak within a stage by readings at its ends, without a reset in between.

    Args:
        peak_before: the process's peak so far, at the begin.
        peak_after: at the end.
        before: the value itself at the begin.
        after: at the end.
    """
    if peak_after > peak_before:
        return MemoryPeak(peak_after, peak_after)
    if peak_after < peak_before:  # the program has reset it meanwhile, and what was before that is not known
        return MemoryPeak(max(before, after, peak_after), UNKNOWN)
    return MemoryPeak(max(before, after), max(before, after, peak_before))


def activation_peak(peak: MemoryPeak, allocated_before_forward: int) -> MemoryPeak:
    """Return what forward and backward add at their peak: activations, gradients, temporaries.

    It is a little low if the backward freed what was live before.
    """
    return MemoryPeak(max(0, peak.low - allocated_before_forward), max(0, peak.high - allocated_before_forward))


def cache_peak(cache_bytes: int, usage: float) -> int:
    """Return the bytes of an engine's KV cache in use at its highest usage (0..1)."""
    return round(cache_bytes * usage)


def communication_buffers(before: DeviceBytes, after: DeviceBytes) -> int | None:
    """Estimate the buffers of a communicator, bytes: the growth of memory outside of torch while it was made.

    Growth of other processes on the device is a part of the estimate.
    """
    low, high = _non_torch(before), _non_torch(after)
    return None if low is None or high is None else max(0, high - low)


def _rounding(reading: DeviceBytes) -> float | None:
    if not reading.requested or reading.allocated <= 0:
        return None  # cudaMallocAsync does not count what is requested
    return 1 - reading.requested / reading.allocated


def _non_torch(reading: DeviceBytes) -> int | None:
    if reading.free is None or reading.total is None:
        return None
    return max(0, reading.total - reading.free - reading.reserved)
