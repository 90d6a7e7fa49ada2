"""Which rank is slower than the others in a stage, judged by own time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Generic, TypeVar

STRAGGLER_RATIO: Final = 1.2
"""A rank is called slow in a stage from this multiple of the median of the others."""
EXCESS_SHARE: Final = 0.02
"""A slow rank is named from an excess of this share of the step."""
TIE_SHARE: Final = 0.05
"""Ranks that are less than this share faster than the slowest one are as slow."""

RankT = TypeVar("RankT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Slowest(Generic[RankT]):
    """The rank with the longest own time in a stage, beside the others."""

    rank: RankT
    own_s: float
    others_s: float
    """Median of the other ranks."""
    tied: tuple[RankT, ...] = ()
    """Those of the other ranks that are as slow."""

    @property
    def excess_s(self) -> float:
        """What one step's stage would save if this rank were as fast as the others."""
        return self.own_s - self.others_s


def slowest(own_s: Mapping[RankT, float]) -> Slowest[RankT] | None:
    """Compare the longest own time with the median of the other ranks.

    Args:
        own_s: own time by rank, s; never raw durations, in which a healthy rank is long because it waits.

    Returns:
        None below two ranks.
    """
    if len(own_s) < 2:
        return None
    rank = max(own_s, key=lambda name: own_s[name])
    others = {name: value for name, value in own_s.items() if name != rank}
    tied = tuple(name for name, value in others.items() if value > (1 - TIE_SHARE) * own_s[rank])
    return Slowest(rank, own_s[rank], median(others.values()), tied)


def held_against(own_s: float, others_s: Sequence[float]) -> float:
    """Say what a rank is held against: the median of the others, those that are as slow left out where it is slow.

    Args:
        own_s: of the rank.
        others_s: of the others, at least one.
    """
    typical_s = median(others_s)
    if 0 < STRAGGLER_RATIO * typical_s <= own_s:
        return median([other_s for other_s in others_s if other_s <= (1 - TIE_SHARE) * own_s])
    return typical_s


def is_straggler(candidate: Slowest[RankT]) -> bool:
    """Judge by the ratio; whether the excess matters depends on how often the stage runs.

    A stage that the other ranks do not have (rank 0 alone writes checkpoints) is no matter of being slow.
    """
    return candidate.others_s > 0 and candidate.own_s >= STRAGGLER_RATIO * candidate.others_s
