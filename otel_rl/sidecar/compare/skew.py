"""Who waited for whom in single collectives of some steps. Durations only, no clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl.sidecar.compare.rank_step import ComparedStep
from otel_rl.tables.forest import combinations, turns
from otel_rl.tables.waits import match

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints

LEAST_WAIT_NS: Final = 1_000_000
"""A shorter wait in one collective is no span."""
SPANS: Final = 32
"""The longest waits of one rank in one step that are spans."""
StepOfRanks = Mapping[int, ComparedStep]
"""One step, by rank."""
Members = defaultdict[int, set[int]]
"""The ranks that were seen in each process group."""


class Wait(NamedTuple):
    """One rank in one collective."""

    group: str
    operation: str
    sequence: int
    """0 if it has no number."""
    begin_ns: int
    span_id: int
    parent_id: int
    ns: int
    last: int
    """The rank that was waited for."""


class Collectives:
    """The collectives of some steps on all their ranks."""

    def __init__(self, steps: Sequence[StepOfRanks]) -> None:
        listed = [(at, rank, step) for at, of_ranks in enumerate(steps) for rank, step in of_ranks.items()]
        sizes = [len(step.collectives) for _, _, step in listed]
        self.steps = steps
        self.rows = np.concatenate([step.collectives for _, _, step in listed])
        self.step: Ints = np.repeat([at for at, _, _ in listed], sizes)
        self.rank: Ints = np.repeat([rank for _, rank, _ in listed], sizes)
        self.names = listed[0][2].names

    def members(self) -> list[Members]:
        """Return the ranks that are seen in each group, by step."""
        found = [Members(set) for _ in self.steps]
        first, _ = combinations(self.step, self.rows["group"], self.rank)
        columns = (one[first].tolist() for one in (self.step, self.rows["group"], self.rank))
        for step, group, rank in zip(*columns, strict=True):
            found[step][group].add(rank)
        return found

    def disagree(self) -> list[bool]:
        """Return where two ranks give one number to different steps: collectives of one group are too far apart.

        Those of one step lie no farther apart than the step has collectives.
        """
        rows = np.flatnonzero(self.rows["sequence"])
        step, group, number = self.step[rows], self.rows["group"][rows], self.rows["sequence"][rows]
        of_rank, least, most = _ranges(number, number, step, group, self.rank[rows])
        of_group, first_end, last_end = _ranges(most, most, step[of_rank], group[of_rank])
        _, first_begin, last_begin = _ranges(least, least, step[of_rank], group[of_rank])
        counts = np.array([max(one.comm_count for one in of_ranks.values()) for of_ranks in self.steps])
        at = step[of_rank][of_group]
        apart = {*at[(last_begin > first_end) & (last_end - first_begin >= counts[at])].tolist()}
        return [step in apart for step in range(len(self.steps))]

    def longest_waits(self, readable: Collection[int], known: Members) -> list[dict[int, list[Wait]]]:
        """Find the longest waits of each rank in each step, by step and rank.

        A collective counts only if every rank of its group whose journal can be read has a span of it. Only the longest
        collectives of a rank are spans, so the one that is missing would be that of the slow rank. If some journals
        cannot be read, a rank without a span may be of the group, unless all its collectives are spans.

        Args:
            readable: the ranks whose journals can be read.
            known: the ranks that were ever seen in each group; these steps are added.
        """
        rows, step, rank = self.rows, self.step, self.rank
        group, operation, sequence = rows["group"], rows["operation"], rows["sequence"]
        place = turns(step, rank, group, operation, sequence == 0)
        found = match((step, group, operation, np.where(sequence == 0, -1 - place, sequence)), rank, rows["duration"])
        is_matched = ~found.is_twice
        is_matched[found.number[self._uneven()]] = False
        size, number = rows["size"][found.first], found.number
        is_whole = (found.count == size) & (size > 1)
        partly = np.flatnonzero(is_matched & (found.count > 1) & (found.count < size))
        is_whole[self._all_readable(partly, number, readable, known)] = True
        last = np.full(len(size), np.iinfo(np.int64).max)
        is_last = found.wait == 0
        np.minimum.at(last, number[is_last], rank[is_last])
        kept = np.flatnonzero((is_matched & is_whole)[number] & (found.wait >= LEAST_WAIT_NS) & ~rows["is_idle"])
        kept = kept[np.argsort(-found.wait[kept], kind="stable")]
        kept = np.sort(kept[turns(step[kept], rank[kept]) < SPANS])  # a rank's are in order of their begins
        waits: list[dict[int, list[Wait]]] = [{} for _ in self.steps]
        columns = (rows[name][kept].tolist() for name in ("group", "operation", "sequence", "begin", "id", "parent"))
        others = (one.tolist() for one in (found.wait[kept], last[number[kept]], step[kept], rank[kept]))
        for of_group, name, *facts, at, of_rank in zip(*columns, *others, strict=True):
            waits[at].setdefault(of_rank, []).append(Wait(self.names[of_group], self.names[name], *facts))
        return waits

    def _uneven(self) -> Flags:
        """Find what has no numbers and is more frequent on one rank: then the k-th of one is not that of another."""
        rows = np.flatnonzero(self.rows["sequence"] == 0)
        columns = self.step[rows], self.rows["group"][rows], self.rows["operation"][rows]
        _, of_rank = combinations(*columns, self.rank[rows])
        _, of_name = combinations(*columns)
        counts = np.bincount(of_rank)[of_rank]
        _, least, most = _ranges(counts, counts, *columns)
        return rows[(least != most)[of_name]]

    def _all_readable(self, partly: Ints, number: Ints, readable: Collection[int], known: Members) -> list[int]:
        """Return which collectives all ranks of the group have that can be read, of those that some ranks lack."""
        ranks = defaultdict[int, set[int]](set)
        of = np.isin(number, partly)
        for one, rank in zip(number[of].tolist(), self.rank[of].tolist(), strict=True):
            ranks[one].add(rank)
        first = np.full(int(number.max(initial=-1)) + 1, len(number))
        np.minimum.at(first, number, np.arange(len(number)))
        by_step = defaultdict[int, list[int]](list)
        for one in partly.tolist():
            by_step[int(self.step[first[one]])].append(one)
        found = []
        for at, (of_ranks, members) in enumerate(zip(self.steps, self.members(), strict=True)):
            for group, some in members.items():
                known[group] |= some
            world_size = max(step.world_size for step in of_ranks.values())
            if len(readable) >= world_size:
                continue
            cut = {rank for rank, step in of_ranks.items() if step.calls.omitted.any()}
            for one in by_step[at]:
                row = self.rows[first[one]]
                expected = readable if row["size"] == world_size else known[int(row["group"])]
                if ranks[one] == set(expected) and not cut - ranks[one]:
                    found.append(one)
        return found


def _ranges(low: Ints, high: Ints, *columns: Ints) -> tuple[Ints, Ints, Ints]:
    """Return for each combination of columns its first row, its least and its largest value."""
    first, number = combinations(*columns)
    least, most = low[first], high[first]
    np.minimum.at(least, number, low)
    np.maximum.at(most, number, high)
    return first, least, most
