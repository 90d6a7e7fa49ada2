"""Who waited for slower ranks in collectives: by durations, never by two clocks.

Ranks leave a collective together, so the one that was in it for the shortest time came last. The ranks given are peers:
they share role and pipeline stage, and do the same work. Only collectives may have other ranks, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, Generic

from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stage_calls import Key, Met, RankT, StageCall, keyed

SYMMETRIC: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Operations that no rank leaves before every rank has come; torch's names without underscores."""


@dataclass(frozen=True, slots=True)
class Waited(Generic[RankT]):
    """How long ranks waited for slower ones in the calls of one step."""

    ns: Mapping[Key, Mapping[RankT, int]] = field(default_factory=dict)
    least: Set[tuple[Key, RankT]] = frozenset()
    """Where ``ns`` is a lower bound: not every collective was seen on every rank of its group."""

    def by_stage(self) -> dict[RankT, Counter[str]]:
        """Add up by rank and stage, ns; a wait in an idle call is idle time already."""
        found: defaultdict[RankT, Counter[str]] = defaultdict(Counter)
        for (stage, _), waited in self.ns.items():
            if kind_of(stage) is not Kind.IDLE:
                for rank, wait in waited.items():
                    found[rank][stage] += wait
        return dict(found)

    def inexact(self) -> set[RankT]:
        """Return the ranks whose sums in ``by_stage`` are lower bounds."""
        return {rank for (stage, _), rank in self.least if kind_of(stage) is not Kind.IDLE}

    def unknown(self, ranks: Collection[RankT]) -> set[str]:
        """Return the stages in which a wait of one of the ranks is a lower bound."""
        return {stage for (stage, _), rank in self.least if rank in ranks}


def is_symmetric(operation: str) -> bool:
    """Return whether all ranks leave the operation together; broadcast, p2p and unknown ones do not.

    The name may be torch's, a backend's or the flight recorder's: `all_gather_single`, `gloo:all_reduce`.
    """
    name = operation.rpartition(":")[2].replace("_", "").lower()
    return any(known in name for known in SYMMETRIC)


def waits(duration_ns: Mapping[RankT, int]) -> dict[RankT, int]:
    """Return how long each rank waited for the last one in a symmetric collective: its duration - the shortest, ns."""
    least = min(duration_ns.values(), default=0)
    return {rank: duration - least for rank, duration in duration_ns.items()}


def call_waits(*peers: Iterable[StageCall[RankT]]) -> Waited[RankT]:
    """Return how long each rank waited for slower ones in each call of one step: the larger of two lower bounds.

    1. The sum of duration - least over the collectives that were seen on several ranks, peers or not. It is the wait
       itself if every collective of the call was seen on every rank of its group.
    2. The time in all collectives of the call - the least of any peer. It holds only if all peers were in the same
       collectives, and is the wait itself if there was a single one. If some were not seen one by one, it is used
       unless the step has collectives of only some peers, or the times of the call forbid it.

    Args:
        peers: the calls of those that do the same work; several if pipeline stages share collectives.
    """
    parts = [keyed(calls) for calls in peers]
    seen, partly = _seen_waits(parts)
    found: defaultdict[Key, dict[RankT, int]] = defaultdict(dict)
    least: set[tuple[Key, RankT]] = set()
    for matched in parts:
        ranks = {rank for of_key in matched.values() for rank in of_key}
        has_smaller = any(_has_smaller(of_key.values(), len(ranks)) for of_key in matched.values())
        for key, of_key in matched.items():
            separable = {rank: call.met_ns for rank, call in of_key.items() if call.is_separable}
            is_whole = set(of_key) == ranks and _are_alike(of_key.values())
            if any(call.omitted > 0 and call.count > 1 for call in of_key.values()):
                is_whole = is_whole and not has_smaller and _can_be_same(of_key.values())
            whole = waits(separable) if is_whole else {}
            found[key] |= {rank: min(met, max(whole.get(rank, 0), seen[key, rank])) for rank, met in separable.items()}
            if not (is_whole and _is_single(of_key.values())):
                least |= {(key, rank) for rank in separable if (key, rank) in partly or _is_cut(of_key[rank])}
    return Waited(dict(found), least)


def transfers(calls: Iterable[StageCall[RankT]], waited: Waited[RankT] | None = None) -> dict[str, int]:
    """Return by stage the least time that any rank was in the collectives of one step without waiting, ns.

    Calls that only some ranks have, or whose collectives are inseparable, do not count. A stage in which a wait is a
    lower bound is left out, since its remainder may be waiting, too. ``waited`` is the result of ``call_waits``.
    """
    listed = list(calls)
    ranks = {call.rank for call in listed}
    if len(ranks) < 2:
        return {}
    total: Counter[str] = Counter()
    waited = call_waits(listed) if waited is None else waited
    for key, matched in keyed(listed).items():
        if set(matched) == ranks and all(call.is_separable for call in matched.values()):
            total[key[0]] += min(
                max(0, call.inside_ns - call.waiting_ns - waited.ns[key][rank]) for rank, call in matched.items()
            )
    unknown = waited.unknown(ranks)
    return {stage: time_ns for stage, time_ns in total.items() if stage not in unknown}


def _are_alike(calls: Collection[StageCall[RankT]]) -> bool:
    """Return whether the ranks were in as many collectives, and in no smaller group as far as was seen."""
    groups = {frozenset(row.group for row in call.rows) for call in calls if call.rows}
    is_smaller = any(0 < row.size < len(calls) for call in calls for row in call.rows)
    return len({call.count for call in calls}) <= 1 and len(groups) <= 1 and not is_smaller


def _has_smaller(calls: Collection[StageCall[RankT]], ranks: int) -> bool:
    return any(1 < row.size < ranks for call in calls for row in call.rows)


def _can_be_same(calls: Collection[StageCall[RankT]]) -> bool:
    """Return whether the ranks can have been in the same collectives, by the times of calls whose longest were seen.

    From the end of the first collective to that of the last, all ranks take equally long. So all but the longest one
    must fit into the call of each rank, unless a call is nothing but its collectives.
    """
    if not all(call.duration_ns > call.inside_ns for call in calls):
        return True
    shown = [call for call in calls if call.rows and call.omitted + len(call.rows) == call.count]
    others_ns = [call.met_ns - max(row.duration_ns for row in call.rows) for call in shown]
    return max(others_ns, default=0) <= min(call.duration_ns for call in calls)


def _is_single(calls: Collection[StageCall[RankT]]) -> bool:
    """Return whether the ranks shared a single collective, with no other rank in it."""
    sizes = {row.size for call in calls for row in call.rows} - {0}
    return {call.count for call in calls} == {1} and sizes <= {len(calls)}


def _is_cut(call: StageCall[RankT]) -> bool:
    """Return whether some of its collectives with other ranks were not seen."""
    return call.omitted > 0 and call.has_others


def _seen_waits(
    parts: Iterable[Mapping[Key, Mapping[RankT, StageCall[RankT]]]],
) -> tuple[Counter[tuple[Key, RankT]], set[tuple[Key, RankT]]]:
    """Add up the waits in collectives that were seen on several ranks; one seen twice on a rank does not count.

    Returns:
        The waits, and the calls with a collective that was not seen on all ranks of its group: the rank that all
        waited for may be missing there, so they may have waited for longer.
    """
    seen: defaultdict[tuple[str, str, int, Key | None], dict[RankT, tuple[Key, Met]]] = defaultdict(dict)
    twice: set[tuple[str, str, int, Key | None]] = set()
    for key, of_key in (item for matched in parts for item in matched.items()):
        for rank, call in of_key.items():
            for row in call.rows:
                name = row.group, row.operation, row.sequence, None if row.sequence else key
                if rank in seen[name]:
                    twice.add(name)
                seen[name][rank] = key, row
    found: Counter[tuple[Key, RankT]] = Counter()
    partly: set[tuple[Key, RankT]] = set()
    for name, rows in seen.items():
        size = next(iter(rows.values()))[1].size
        if name not in twice and len(rows) <= size:
            for rank, wait in waits({rank: row.duration_ns for rank, (_, row) in rows.items()}).items():
                found[rows[rank][0], rank] += wait
        if name in twice or len(rows) != size:
            partly |= {(key, rank) for rank, (key, _) in rows.items()}
    return found, partly
