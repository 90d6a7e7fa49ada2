"""Which rank holds the others up, and in which stage: from durations alone, never from the clocks of two ranks.

Ranks leave a collective together, so the one that was in it for the shortest time came last. Everywhere here the ranks
given are peers: they share role and pipeline stage, and do the same work. Only collectives may have others, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from otel_rl import vocabulary as v
from otel_rl.analysis.balance import EXCESS_SHARE, Slowest, held_against, is_straggler, slowest
from otel_rl.analysis.goodput import Kind, kind_of

SYMMETRIC: Final = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Operations that no rank leaves before every rank has come; in torch's names, underscores left out."""

RankT = TypeVar("RankT", bound=Hashable)
Key = tuple[str, int]
"""Stage and which of its calls within the step: what ranks have in common without a clock."""


class Met(NamedTuple):
    """One collective of a call that ranks leave together."""

    group: str
    operation: str
    size: int
    """Ranks of the group."""
    sequence: int
    """The same on every rank of the group, from 1; 0 where it has none, and can be matched within its call alone."""
    duration_ns: int


@dataclass(frozen=True, slots=True)
class StageCall(Generic[RankT]):
    """One call of a stage on one rank. The calls of a rank come in order of time and do not overlap."""

    step: int
    rank: RankT
    stage: str
    duration_ns: int
    comm_ns: int = 0
    """Time in the collectives inside it that were seen."""
    hidden_ns: int | None = 0
    """Time in collectives that Python cannot see, where a probe bounds it (DDP: end of the backward - last local
    gradient); None where such collectives run and nothing tells their time."""
    apart_ns: int = 0
    """Of ``comm_ns``, time in those that ranks do not leave together (broadcast, p2p, waits for asynchronous ones):
    what a rank waits there is not told by what the others take."""
    device_ns: int | None = None
    """Where the host only launches the work, and a device timed it without any collective: own time."""
    count: int = 0
    """Collectives inside it, seen one by one or not."""
    omitted: int = 0
    """Of these, those that were not seen one by one: the shortest ones of many."""
    rows: tuple[Met, ...] = ()
    """Those of them that were seen one by one and tell who waited."""
    waiting_ns: int = 0
    """Time in collectives inside of `rl.idle` inside of it: idle time already."""
    idle_ns: int = 0
    """Time in `rl.idle` inside of it, without the collectives there."""
    loading_ns: int = 0
    """Of that, in waits for data: idle, and yet its own, since it is its own loader that is slow."""

    @property
    def inside_ns(self) -> int:
        """Time in collectives, as far as it is known."""
        return self.comm_ns + (self.hidden_ns or 0)

    @property
    def met_ns(self) -> int:
        """Time in collectives that ranks leave together."""
        return min(self.duration_ns, max(0, self.inside_ns - self.waiting_ns - self.apart_ns))

    @property
    def is_separable(self) -> bool:
        """Whether its own time is known."""
        return self.hidden_ns is not None or self.device_ns is not None

    @property
    def has_others(self) -> bool:
        """Whether other ranks may be in its collectives; who is alone in the longest ones is so in all."""
        return self.count > 0 and {row.size for row in self.rows} != {1}

    @property
    def own_ns(self) -> int | None:
        """Stage - collectives - waits other than for data, or that of the device; None where it cannot be separated."""
        if self.device_ns is not None:
            return self.device_ns
        return None if self.hidden_ns is None else self.active_ns + self.loading_ns

    @property
    def active_ns(self) -> int:
        """Stage - collectives that are known - waits, by the host's clock."""
        return max(0, self.duration_ns - self.inside_ns - self.idle_ns)


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


@dataclass(frozen=True, slots=True)
class Waited(Generic[RankT]):
    """How long ranks waited for slower ones in the calls of one step."""

    ns: Mapping[Key, Mapping[RankT, int]] = field(default_factory=dict)
    least: Set[tuple[Key, RankT]] = frozenset()
    """Where that is a lower bound, since not every collective was seen one by one, on every rank of its group."""

    def by_stage(self) -> dict[RankT, Counter[str]]:
        """Add up by rank and stage, ns; a wait in an idle call is idle time already."""
        found: defaultdict[RankT, Counter[str]] = defaultdict(Counter)
        for (stage, _), waited in self.ns.items():
            if kind_of(stage) is not Kind.IDLE:
                for rank, wait in waited.items():
                    found[rank][stage] += wait
        return dict(found)

    def inexact(self) -> set[RankT]:
        """Name the ranks for which a sum of ``by_stage`` is a lower bound."""
        return {rank for (stage, _), rank in self.least if kind_of(stage) is not Kind.IDLE}

    def unknown(self, ranks: Collection[RankT]) -> set[str]:
        """Name the stages of which a wait of one of the ranks is a lower bound."""
        return {stage for (stage, _), rank in self.least if rank in ranks}


@dataclass(frozen=True, slots=True)
class Slow(Generic[RankT]):
    """A slow rank in one stage of one step."""

    stage: str
    rank: Slowest[RankT]


def is_symmetric(operation: str) -> bool:
    """Say whether all ranks leave the operation together; broadcast, p2p and what is unknown are not taken for it.

    Args:
        operation: as torch, a backend or the flight recorder names it: `all_gather_single`, `gloo:all_reduce`.
    """
    name = operation.rpartition(":")[2].replace("_", "").lower()
    return any(known in name for known in SYMMETRIC)


def waits(duration_ns: Mapping[RankT, int]) -> dict[RankT, int]:
    """Say how long each rank waited for the last one in one symmetric collective: its duration - the shortest, ns."""
    least = min(duration_ns.values(), default=0)
    return {rank: duration - least for rank, duration in duration_ns.items()}


def call_waits(*peers: Iterable[StageCall[RankT]]) -> Waited[RankT]:
    """Say how long each rank waited for slower ones in each call of one step: the larger of two lower bounds.

    One adds up, over the collectives that were seen on several ranks, peers or not, duration - least of these: the wait
    itself where every collective of the call was seen on every rank of its group. The other is the time in all
    collectives of the call - the least of any peer; it holds only where all peers were in the same, and is the wait
    itself where that was a single one. Of a call whose collectives were not all seen one by one that is believed unless
    the step has any in a group of some peers, or the times of the call forbid it.

    Args:
        peers: the calls of those that do the same work; several where pipeline stages meet in collectives.
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


def slow_ranks(calls: Iterable[StageCall[RankT]]) -> list[Slow[RankT]]:
    """Name the slow ranks of one step, the costliest stage first.

    A stage is judged by own time; one whose hidden collectives cannot be separated on some rank is left out.
    """
    listed = list(calls)
    return slow_in(own_times(listed), step_ns(listed))


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


# --- parts ------------------------------------------------------------------------------------------------------------


def by_step(calls: Iterable[StageCall[RankT]]) -> dict[int, list[StageCall[RankT]]]:
    """Part calls by their step."""
    steps: defaultdict[int, list[StageCall[RankT]]] = defaultdict(list)
    for call in calls:
        steps[call.step].append(call)
    return dict(steps)


def keyed(calls: Iterable[StageCall[RankT]]) -> dict[Key, dict[RankT, StageCall[RankT]]]:
    """Match the calls of one step over the ranks: the k-th call of a stage on each."""
    counts: Counter[tuple[RankT, str]] = Counter()
    matched: defaultdict[Key, dict[RankT, StageCall[RankT]]] = defaultdict(dict)
    for call in calls:
        matched[call.stage, counts[call.rank, call.stage]][call.rank] = call
        counts[call.rank, call.stage] += 1
    return dict(matched)


def step_ns(calls: Iterable[StageCall[RankT]]) -> int:
    """Say how long the stages of one step took on the rank where they took longest."""
    total: Counter[RankT] = Counter()
    for call in calls:
        total[call.rank] += call.duration_ns
    return max(total.values(), default=0)


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


def transfers(calls: Iterable[StageCall[RankT]], waited: Waited[RankT] | None = None) -> dict[str, int]:
    """Add up by stage the least that any rank spent in the collectives of each call of one step without waiting, ns.

    A call that only some ranks have is no collective of all, one with inseparable collectives says nothing, and of one
    rank alone it cannot be told what it waited. A stage of which a wait is but a lower bound is left out: the remainder
    may be waiting, too.

    Args:
        calls: of one step.
        waited: from ``call_waits``, where that was asked already.
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


def slow_in(own_s: Mapping[str, Mapping[RankT, float]], whole_ns: int) -> list[Slow[RankT]]:
    """Name the slow ranks by own time, s, of the stages of a step, the costliest stage first."""
    limit_s = EXCESS_SHARE * whole_ns / 1e9
    found = [Slow(stage, one) for stage, own in own_s.items() if (one := slowest(own)) is not None]
    slow = [one for one in found if is_straggler(one.rank) and one.rank.excess_s >= limit_s]
    return sorted(slow, key=lambda one: -one.rank.excess_s)


def _are_alike(calls: Collection[StageCall[RankT]]) -> bool:
    """Whether the ranks were in as many collectives, and, as far as those were seen, in groups of all of them."""
    groups = {frozenset(row.group for row in call.rows) for call in calls if call.rows}
    is_smaller = any(0 < row.size < len(calls) for call in calls for row in call.rows)
    return len({call.count for call in calls}) <= 1 and len(groups) <= 1 and not is_smaller


def _has_smaller(calls: Collection[StageCall[RankT]], ranks: int) -> bool:
    """Whether some of the ranks met without the others."""
    return any(1 < row.size < ranks for call in calls for row in call.rows)


def _can_be_same(calls: Collection[StageCall[RankT]]) -> bool:
    """Whether the ranks can have been in the same collectives, by the times of calls of which the longest were seen.

    From the end of the first to that of the last all ranks take equally long. So the others, which take no less time
    than all but the longest, fit into the call of each rank, unless that is but its collectives, without what lies
    between them.
    """
    if not all(call.duration_ns > call.inside_ns for call in calls):
        return True
    shown = [call for call in calls if call.rows and call.omitted + len(call.rows) == call.count]
    others_ns = [call.met_ns - max(row.duration_ns for row in call.rows) for call in shown]
    return max(others_ns, default=0) <= min(call.duration_ns for call in calls)


def _is_single(calls: Collection[StageCall[RankT]]) -> bool:
    """Whether ranks that were in the same collectives were in a single one, and with nobody else."""
    sizes = {row.size for call in calls for row in call.rows} - {0}
    return {call.count for call in calls} == {1} and sizes <= {len(calls)}


def _is_cut(call: StageCall[RankT]) -> bool:
    """Whether collectives with others were not seen."""
    return call.omitted > 0 and call.has_others


def _seen_waits(
    parts: Iterable[Mapping[Key, Mapping[RankT, StageCall[RankT]]]],
) -> tuple[Counter[tuple[Key, RankT]], set[tuple[Key, RankT]]]:
    """Add up the waits in collectives that were seen on several ranks; one seen twice on a rank is none.

    Returns:
        With the calls with a collective that was not seen on all ranks of its group: the one that all waited for may
        not be among these, then they waited for longer.
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
