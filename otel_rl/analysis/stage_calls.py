"""Calls of stages, in the form in which ranks are compared."""

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
    sequence: int
    """Equal on every rank of the group, from 1; 0 if unknown, then it is matched within its call only."""
    duration_ns: int


@dataclass(frozen=True, slots=True)
class StageCall(Generic[RankT]):
    """One call of a stage on one rank. The calls of a rank come in order of time; those of one stage do not overlap."""

    step: int
    rank: RankT
    stage: str
    duration_ns: int
    comm_ns: int = 0
    hidden_ns: int | None = 0
    """Time in collectives that Python cannot see, as a probe bounds it (DDP: end of the backward - last local
    gradient); None if there are such collectives and their time is unknown."""
    apart_ns: int = 0
    """The part of ``comm_ns`` in collectives that ranks do not leave together: broadcast, p2p, asynchronous ones."""
    device_ns: int | None = None
    """Own time as a device measured it, if the host only launches the work and no collective is inside."""
    count: int = 0
    omitted: int = 0
    """Collectives that were not seen one by one: the shortest ones of many."""
    rows: tuple[Met, ...] = ()
    """Collectives that were seen one by one and show who waited."""
    waiting_ns: int = 0
    """Time in collectives inside of an `rl.idle` inside of it: idle time already."""
    idle_ns: int = 0
    """Time in `rl.idle` inside of it, without the collectives there."""
    loading_ns: int = 0
    """The part of ``idle_ns`` that waits for data; it is own time, since the rank's own loader is slow."""

    @property
    def inside_ns(self) -> int:
        return self.comm_ns + (self.hidden_ns or 0)

    @property
    def met_ns(self) -> int:
        return min(self.duration_ns, max(0, self.inside_ns - self.waiting_ns - self.apart_ns))

    @property
    def is_separable(self) -> bool:
        return self.hidden_ns is not None or self.device_ns is not None

    @property
    def has_others(self) -> bool:
        """Whether other ranks may be in its collectives; a rank alone in the longest ones is alone in all."""
        return self.count > 0 and {row.size for row in self.rows} != {1}

    @property
    def own_ns(self) -> int | None:
        """Stage - collectives - waits other than for data, or the device's time; None if it cannot be separated."""
        if self.device_ns is not None:
            return self.device_ns
        return None if self.hidden_ns is None else self.active_ns + self.loading_ns

    @property
    def active_ns(self) -> int:
        """Stage - known collectives - waits, by the host's clock."""
        return max(0, self.duration_ns - self.inside_ns - self.idle_ns)


def keyed(calls: Iterable[StageCall[RankT]]) -> dict[Key, dict[RankT, StageCall[RankT]]]:
    """Match the calls of one step over the ranks: the k-th call of a stage on each."""
    counts: Counter[tuple[RankT, str]] = Counter()
    matched: defaultdict[Key, dict[RankT, StageCall[RankT]]] = defaultdict(dict)
    for call in calls:
        matched[call.stage, counts[call.rank, call.stage]][call.rank] = call
        counts[call.rank, call.stage] += 1
    return dict(matched)
