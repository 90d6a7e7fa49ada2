"""Calls of stages as the comparison of ranks takes them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

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
