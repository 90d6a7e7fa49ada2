"""What a device's memory consists of: fragmentation, slack, rounding, memory outside of torch, peaks of stages.

A number that is not known is None, and what follows from it is None: never 0, never guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = 1 << 62
"""More than any device has."""


@dataclass(frozen=True, slots=True)
class PeakBounds:
    """The highest value within a stage, bytes: exact, or bounds of it."""

    low: int
    high: int

    @property
    def is_exact(self) -> bool:
        """Return whether the bounds are equal, as they are if the stage raised the process's own peak."""
        return self.low == self.high


def fragmentation(inactive_split: int | None, reserved: int) -> float | None:
    """Return the share of the allocator's memory that is free, but unusable for a larger tensor."""
    return None if inactive_split is None or reserved <= 0 else inactive_split / reserved


def slack(allocated: int, reserved: int) -> float | None:
    """Return the share of the allocator's memory that is free, with the reusable cache."""
    return (reserved - allocated) / reserved if reserved > 0 else None


def rounding(requested: int | None, allocated: int) -> float | None:
    """Return the share of live memory that rounding up to blocks costs; cudaMallocAsync does not count requests."""
    return 1 - requested / allocated if requested and allocated > 0 else None


def non_torch(usage: tuple[int, int] | None, reserved: int) -> int | None:
    """Return the bytes in use below torch: communication buffers, an engine's own pool, the context, other processes.

    Args:
        usage: free and total bytes of the device.
        reserved: bytes that torch's allocator holds of it.
    """
    return None if usage is None else max(0, usage[1] - usage[0] - reserved)


def stage_peak(peak_before: int, peak_after: int, before: int, after: int) -> PeakBounds:
    """Bound the peak within a stage by readings at its ends, without a reset in between.

    Args:
        peak_before: the process's peak so far, at the begin.
        peak_after: at the end.
        before: the value itself at the begin.
        after: at the end.
    """
    if peak_after > peak_before:
        return PeakBounds(peak_after, peak_after)
    if peak_after < peak_before:  # the program has reset it meanwhile, and what was before that is not known
        return PeakBounds(max(before, after, peak_after), UNKNOWN)
    return PeakBounds(max(before, after), max(before, after, peak_before))


def activation_peak(peak: PeakBounds, allocated_before_forward: int) -> PeakBounds:
    """Return what forward and backward add at their peak: activations, gradients, temporaries.

    It is a little low if the backward freed what was live before.
    """
    return PeakBounds(max(0, peak.low - allocated_before_forward), max(0, peak.high - allocated_before_forward))
