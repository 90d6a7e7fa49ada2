"""What the memory of a device consists of, as a report says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """What the device of one rank held at the end of the step at which most was reserved; null is not known."""

    role: str
    rank: int
    allocated_bytes: int
    """Live tensors."""
    reserved_bytes: int
    """Held by torch's allocator."""
    active_bytes: int | None
    """Live, or still in use by a stream."""
    requested_bytes: int | None
    """Live tensors as they were asked for."""
    inactive_split_bytes: int | None
    """Free parts of blocks that cannot be given back."""
    fragmentation: float | None
    """Inactive split over reserved."""
    slack: float | None
    """Reserved and not allocated, over reserved."""
    rounding: float | None
    """Allocated and not requested, over allocated."""
    non_torch_bytes: int | None
    """Highest of the run: in use below torch, by whatever process."""
    activation_bytes: int | None
    """Highest of the run: of one micro-batch, a lower bound unless its span says that it is exact."""
    kv_cache_bytes: int | None
    """Highest of the run: keys and values that an engine of this process kept."""
    kv_cache_size_bytes: int | None
    """Highest of the run: taken ahead of time for them, a pool or a static cache."""
    comm_estimate_bytes: int | None
    """Estimate: by what non-torch memory grew while process groups were made and first used."""
