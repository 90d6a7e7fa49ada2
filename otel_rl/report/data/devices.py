"""What a node said of the devices of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from otel_rl.report.data.ranks import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDevice:
    """The device of one or more ranks, in the last attempt."""

    ranks: Sequence[Rank]
    device: str
    """The id that the driver gave it."""
    xids: Mapping[str, int] = field(default_factory=dict)
    """NVIDIA's critical errors, by their number."""
    uncorrected: int = 0
    """Errors of its memory that could not be corrected."""
    readings: int = 0
    """Inside the steps, on which the following are based."""
    use: float | None = None
    """Mean share of time in which a kernel ran."""
    throttled: Mapping[str, float] = field(default_factory=dict)
    """Share of readings at which its clock was lowered, by reason."""
