"""Which rank holds the others up, and in which stage: from own times, never from the clocks of two ranks.

The ranks given are peers: they share role and pipeline stage, and do the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from otel_rl import vocabulary as v
from otel_rl.analysis.balance import EXCESS_SHARE, Slowest, held_against, is_straggler, slowest
from otel_rl.analysis.stage_calls import RankT, StageCall


@dataclass(frozen=True, slots=True)
class Slow(Generic[RankT]):
    """A slow rank in one stage of one step."""

    stage: str
    rank: Slowest[RankT]


def costs(
    calls: Iterable[StageCall[RankT]], whole_ns: int, between_s: Mapping[RankT, float] | None = None
) -> dict[tuple[RankT, str], float]:
    """Say what each slow rank of one step, and each as slow, takes longer than the median of the rest, s, by stage.

    Args:
        calls: of one step.
        whole_ns: how long the step took.
        between_s: own time under no stage by rank, from ``between_stages``.
    """
    own_s = own_times(list(calls), between_s)
    found: dict[tuple[RankT, str], float] = {}
    for one in slow_in(own_s, whole_ns):
        own = own_s[one.stage]
        for rank in (one.rank.rank, *one.rank.tied):
            others_s = [other_s for name, other_s in own.items() if name != rank]
            rest_s = held_against(own[rank], others_s)
            if rest_s > 0:  # else only those that are as slow have the stage
                found[rank, one.stage] = own[rank] - rest_s
    return found


def between_stages(other_ns: Mapping[RankT, int], waited_ns: Mapping[RankT, int]) -> dict[RankT, float]:
    """Say how long each rank worked under no stage in one step, s.

    There it may wait itself, in what nobody sees: a store, a device, a file that another rank writes. So more than the
    least of the ranks counts only as far as a peer was seen to wait in collectives for longer than this rank.

    Args:
        other_ns: under no stage by rank, from ``activity``.
        waited_ns: for slower ranks, in collectives, by rank.
    """
    least = min(other_ns.values(), default=0)
    longest = max((waited_ns.get(rank, 0) for rank in other_ns), default=0)
    return {rank: min(other, least + longest - waited_ns.get(rank, 0)) / 1e9 for rank, other in other_ns.items()}


def own_times(
    calls: Sequence[StageCall[RankT]], between_s: Mapping[RankT, float] | None = None
) -> dict[str, dict[RankT, float]]:
    """Add up own time by stage and rank of one step, s; a rank without the stage has none of it.

    Args:
        calls: of one step.
        between_s: own time under no stage by rank, from ``between_stages``.
    """
    ranks = list(dict.fromkeys(call.rank for call in calls))
    own_ns: dict[str, dict[RankT, int]] = {}
    for call in calls:
        own_ns.setdefault(call.stage, dict.fromkeys(ranks, 0))[call.rank] += call.own_ns or 0
    unknown = {call.stage for call in calls if not call.is_separable}
    found = {
        stage: {rank: time / 1e9 for rank, time in own.items()} for stage, own in own_ns.items() if stage not in unknown
    }
    return {**found, v.OTHER: dict(between_s)} if between_s else found


def slow_in(own_s: Mapping[str, Mapping[RankT, float]], whole_ns: int) -> list[Slow[RankT]]:
    """Name the slow ranks by own time, s, of the stages of a step, the costliest stage first."""
    limit_s = EXCESS_SHARE * whole_ns / 1e9
    found = [Slow(stage, one) for stage, own in own_s.items() if (one := slowest(own)) is not None]
    slow = [one for one in found if is_straggler(one.rank) and one.rank.excess_s >= limit_s]
    return sorted(slow, key=lambda one: -one.rank.excess_s)
