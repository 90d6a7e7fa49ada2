"""Which rank is slower than its peers, and in which stage: by own time, never by the clocks of two ranks.

The ranks given are peers: they share role and pipeline stage, and do the same work.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Generic, TypeVar

from otel_rl import vocabulary as v

RankT = TypeVar("RankT", bound=Hashable)
STRAGGLER_RATIO: Final = 1.2
"""A rank is slow in a stage from this multiple of the median of the others."""
WRITTEN: Final = (v.CHECKPOINT, v.ACTION)
WRITER_RATIO: Final = 10.0
"""A rank that takes so many times as long for a checkpoint writes it for the others."""
EXCESS_SHARE: Final = 0.02
"""A slow rank is named if its excess is at least this share of the step."""
TIE_SHARE: Final = 0.05
"""Ranks that are less than this share faster than the slowest one are as slow."""
PERSISTENT_SHARE: Final = 0.5
"""A rank is a straggler of the run if it is slow in this share of the steps that have the stage."""
LEAST_TIMES: Final = 3
"""A rank that is slow at times only is one from this many steps, and the same share of those with any slow rank."""
COMM_SHARE: Final = 0.3
"""Communication is slow from this share of the step, without the waits for slow ranks."""


@dataclass(frozen=True, slots=True)
class Slowest(Generic[RankT]):
    """The rank with the longest own time in a stage, and the median of the others."""

    rank: RankT
    own_s: float
    others_s: float
    tied: tuple[RankT, ...] = ()

    @property
    def excess_s(self) -> float:
        """Return what one step's stage would save if this rank were as fast as the others."""
        return self.own_s - self.others_s


def slowest(own_s: Mapping[RankT, float]) -> Slowest[RankT] | None:
    """Compare the longest own time with the median of the other ranks; None below two ranks.

    Own time is never a raw duration: a healthy rank's duration is long because it waits.
    """
    if len(own_s) < 2:
        return None
    rank = max(own_s, key=lambda name: own_s[name])
    others = {name: value for name, value in own_s.items() if name != rank}
    tied = tuple(name for name, value in others.items() if value > (1 - TIE_SHARE) * own_s[rank])
    return Slowest(rank, own_s[rank], median(others.values()), tied)


def compared_with(own_s: float, others_s: Sequence[float]) -> float:
    """Return what a rank is compared with: the median of the others; if it is slow, without those that are as slow."""
    typical_s = median(others_s)
    if 0 < STRAGGLER_RATIO * typical_s <= own_s:
        return median([other_s for other_s in others_s if other_s <= (1 - TIE_SHARE) * own_s])
    return typical_s


def is_straggler(candidate: Slowest[RankT]) -> bool:
    """Judge by the ratio alone. If the others do not have the stage (rank 0 writes checkpoints), no rank is slow."""
    return candidate.others_s > 0 and candidate.own_s >= STRAGGLER_RATIO * candidate.others_s


def costs(own_s: Mapping[str, Mapping[RankT, float]], whole_ns: int) -> dict[tuple[RankT, str], float]:
    """Return by rank and stage what slow ranks of one step take longer than the median of the rest, s.

    Args:
        own_s: own time by stage and rank; under ``v.OTHER`` that under no stage, from ``tables.peers``.
        whole_ns: duration of the step.
    """
    found: dict[tuple[RankT, str], float] = {}
    for stage, one in slow_in(own_s, whole_ns).items():
        own = own_s[stage]
        for rank in (one.rank, *one.tied):
            rest_s = compared_with(own[rank], [other_s for name, other_s in own.items() if name != rank])
            if rest_s > 0:  # else only those that are as slow have the stage
                found[rank, stage] = own[rank] - rest_s
    return found


def slow_in(own_s: Mapping[str, Mapping[RankT, float]], whole_ns: int) -> dict[str, Slowest[RankT]]:
    """Return the slow ranks of a step by stage, from the own time of its stages, s; the costliest stage first."""
    limit_s = EXCESS_SHARE * whole_ns / 1e9
    found = {stage: one for stage, own in own_s.items() if (one := slowest(own)) is not None}
    slow = [
        (stage, one)
        for stage, one in found.items()
        if is_straggler(one) and one.excess_s >= limit_s and not _writes_for_all(stage, one)
    ]
    return dict(sorted(slow, key=lambda item: -item[1].excess_s))


def _writes_for_all(stage: str, one: Slowest[RankT]) -> bool:
    """Return whether this rank alone writes the checkpoints, as rank 0 of most trainers does."""
    return stage in WRITTEN and one.own_s >= WRITER_RATIO * one.others_s


@dataclass(frozen=True, slots=True)
class SlowRank(Generic[RankT]):
    """A rank that is slower than its peers, over all its stages; times are those of a mean step."""

    rank: RankT
    stages: tuple[str, ...]
    """Those in which it is slow, the costliest first."""
    is_everywhere: bool
    """It is slow in most of its stages by time, so that not one of them is the reason."""
    own_s: float
    """In these stages; if it is slow everywhere, in all."""
    others_s: float
    """What its peers take there."""
    excess_s: float
    """What it takes longer, stage by stage: what it takes less in another one makes up for nothing."""

    @property
    def ratio(self) -> float:
        return self.own_s / self.others_s if self.others_s else 1.0


def slow_rank(rank: RankT, own_s: Mapping[str, Mapping[RankT, float]], named: Iterable[str]) -> SlowRank[RankT]:
    """Sum up a slow rank.

    Args:
        rank: one that is slow in some stage again and again.
        own_s: of the ranks in their mean step, by stage, of stages in which they can be compared.
        named: the stages in which it is slow.
    """
    times = {stage: (own[rank], _typical(rank, own)) for stage, own in own_s.items() if len(own) > 1 and rank in own}
    is_everywhere = _is_slow_in_most(list(times.values()))
    counted = times if is_everywhere else {stage: times[stage] for stage in named if stage in times}
    excess_s = {stage: max(0.0, own - others) for stage, (own, others) in counted.items()}
    slow = [stage for stage in counted if not is_everywhere or _is_slow(*times[stage])]
    return SlowRank(
        rank,
        tuple(sorted(slow, key=lambda stage: -excess_s[stage])),
        is_everywhere,
        sum(own for own, _ in counted.values()),
        sum(others for _, others in counted.values()),
        sum(excess_s.values()),
    )


def inside_collectives(comm_s: float, ratio: float) -> float:
    """Return how much of its time in collectives a rank costs that is so many times as slow in everything.

    With too little of a core it does its part of each collective as slowly as its own work, and all ranks are in there
    until it has.
    """
    return comm_s * (1 - 1 / ratio) if ratio > 1 else 0.0


def is_starved(core_share: float | None, others: float | None) -> bool:
    """Return whether a rank gets so much less of a core than its peers that this makes it slow."""
    return core_share is not None and others is not None and STRAGGLER_RATIO * core_share <= others


def _typical(rank: RankT, own_s: Mapping[RankT, float]) -> float:
    return compared_with(own_s[rank], [other_s for name, other_s in own_s.items() if name != rank])


def _is_slow(own_s: float, others_s: float) -> bool:
    return own_s >= STRAGGLER_RATIO * others_s > 0


def _is_slow_in_most(times: Sequence[tuple[float, float]]) -> bool:
    """Return whether a rank is slow in most of the time of its peers, with the longest stage and without it."""
    ordered = sorted(times, key=lambda pair: -pair[1])
    for part in (ordered, ordered[1:]):
        slow_s = sum(others for own, others in part if _is_slow(own, others))
        if not 2 * slow_s > sum(others for _, others in part):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Straggler(Generic[RankT]):
    """A rank that is slow in a stage again and again."""

    rank: RankT
    stage: str
    cost_s: float
    """What a step would save if this rank, and those as slow, were as fast as the others.

    It is own time - median of the others, as the median over the steps that have the stage, times the share of steps
    that have it. For a rank that is slow at times it is the mean over all steps.
    """
    slow_steps: int
    """Number of steps in which it was the slowest or as slow."""
    steps: int
    own_s: float
    """The median of its own time; if it is slow at times, over the steps in which it is."""
    others_s: float
    """The median of the other ranks in the same step, as the median over the steps in which they have the stage."""
    all_steps: int

    @property
    def is_mean(self) -> bool:
        return is_mean(self.slow_steps, self.steps, self.all_steps)


@dataclass(frozen=True, slots=True)
class SlowComm:
    """Communication that takes long on every rank."""

    stage: str
    transfer_s: float
    """The least time of any rank in the collectives without waiting, as the median over the steps."""
    share: float
    count: float
    """Collectives per step on the rank that has most."""


def is_at_times(slow_steps: int, steps: int) -> bool:
    """Return whether a straggler is slow at times only: in fewer than half of the steps."""
    return slow_steps < PERSISTENT_SHARE * steps


def is_mean(slow_steps: int, steps: int, all_steps: int) -> bool:
    """Return whether a cost is a part of the mean step, since not every step has it."""
    return is_at_times(slow_steps, steps) or steps < all_steps
