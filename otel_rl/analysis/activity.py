"""What each rank did in a step: work, waits for others, transfers; the parts add up to the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from otel_rl.analysis.stage_calls import RankT, StageCall
from otel_rl.analysis.waits import call_waits


@dataclass(frozen=True, slots=True)
class Activity:
    """What one rank did in one step, ns; the parts add up to the step where calls do not overlap."""

    active_ns: int
    """Own time of its stages, without waits inside of them."""
    wait_ns: int
    """In collectives, waiting for other ranks."""
    transfer_ns: int
    """In collectives, all ranks there."""
    inseparable_ns: int
    """In stages whose hidden collectives cannot be separated."""
    inside_ns: int
    """Idle inside of stages, without collectives."""
    idle_ns: int
    """Under no stage."""


def activity(
    calls: Iterable[StageCall[RankT]], wall_ns: Mapping[RankT, int], waited_ns: Mapping[RankT, int] | None = None
) -> dict[RankT, Activity]:
    """Split one step of every rank.

    Args:
        calls: of one step; top-level stages only.
        wall_ns: duration of the step by rank, by its own clock.
        waited_ns: in collectives, by rank. Without it waits are those of ``call_waits``.
    """
    listed = list(calls)
    if waited_ns is None:
        waited_ns = {rank: sum(by_stage.values()) for rank, by_stage in call_waits(listed).by_stage().items()}
    of_rank: defaultdict[RankT, list[StageCall[RankT]]] = defaultdict(list)
    for call in listed:
        of_rank[call.rank].append(call)
    found: dict[RankT, Activity] = {}
    for rank, wall in wall_ns.items():
        own = of_rank[rank]
        separable = [call for call in own if call.hidden_ns is not None]
        wait = waited_ns.get(rank, 0)
        found[rank] = Activity(
            active_ns=sum(call.active_ns for call in separable),
            wait_ns=wait,
            transfer_ns=sum(min(call.duration_ns, call.inside_ns) for call in separable) - wait,
            inseparable_ns=sum(call.duration_ns for call in own if call.hidden_ns is None),
            inside_ns=sum(call.idle_ns for call in separable),
            idle_ns=max(0, wall - sum(call.duration_ns for call in own)),
        )
    return found
