"""Ranks that do the same work, compared in many steps at once: own times, transfers, and what an ideal step would take.

The peers of a step are a ``part``: the ranks of a role, or of one pipeline stage of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stages import LOADING
from otel_rl.tables.calls import Calls, with_collectives_joined
from otel_rl.tables.forest import combinations, inverse, turns
from otel_rl.tables.waits import CallTable, CallWaits, call_waits

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints

CallKey = tuple[str, int]
"""Stage and which of its calls within the step: what ranks have in common without a clock."""
KINDS: Final = tuple(Kind)


@dataclass(frozen=True, eq=False)
class RankSteps:
    """Steps of ranks that are compared."""

    step: Ints
    """Number of the step; ranks with the same number are compared."""
    part: Ints
    """Pipeline stage; ranks with the same one do the same work."""
    rank: Ints


@dataclass(frozen=True, eq=False)
class Compared:
    """The calls of many steps and the waits in them."""

    table: CallTable
    waits: CallWaits

    @property
    def is_work(self) -> Flags:
        """Whether a rank may be slow in a call: in work or in loading data, not in waiting for others."""
        known = [kind_of(one) is not Kind.IDLE or one == LOADING for one in self.table.stages]
        return np.array(known, bool)[self.table.stage]

    def by_rank_step(self, skipped: Sequence[Collection[CallKey]]) -> list[RankWaits]:
        """Return the waits in each step of a rank.

        Args:
            skipped: by step the calls that lie in updates which the optimizer skipped: their waits stay wasted.
        """
        size, idle = len(skipped), self.table.is_idle
        kinds = np.array([KINDS.index(kind_of(one)) for one in self.table.stages] or [0], np.int64)[self.table.stage]
        total = np.zeros(size, np.int64)
        np.add.at(total, self.table.rank_step[~idle], self.waits.ns[~idle])
        is_kept = np.ones(len(self.table.rank_step), bool)
        for row, keys in enumerate(skipped):
            for call in np.flatnonzero(self.table.rank_step == row).tolist() if keys else ():
                is_kept[call] = (self.table.stages[self.table.stage[call]], int(self.table.turn[call])) not in keys
        by_kind = np.zeros((len(KINDS), size), np.int64)
        np.add.at(by_kind, (kinds[is_kept], self.table.rank_step[is_kept]), self.waits.ns[is_kept])
        flags = []
        for flag in (self.waits.is_least & ~idle, self.waits.is_least & ~idle & is_kept, self.table.is_hidden):
            found = np.zeros(size, bool)
            found[self.table.rank_step[flag]] = True
            flags.append(found.tolist())
        return [
            RankWaits(ns, is_least, dict(zip(KINDS, of_kind, strict=True)), is_least_kept, is_hidden)
            for ns, of_kind, is_least, is_least_kept, is_hidden in zip(
                total.tolist(), by_kind.T.tolist(), *flags, strict=True
            )
        ]


class RankWaits(NamedTuple):
    """How long a rank waited for slower ones in a step."""

    ns: int
    """Time waited for slower ranks, without calls that are waits themselves, ns."""
    is_least: bool
    """It is a lower bound."""
    by_kind: dict[Kind, int]
    """The same by the kind of the stage, without updates that were skipped."""
    is_least_kept: bool
    is_hidden: bool
    """Some of its calls have collectives that no hook saw, or measure launches."""


def compare(calls: Calls, steps: RankSteps) -> Compared:
    """Match the calls of ranks, and find who waited for whom. Cost: 1 us a call and a collective in it.

    Args:
        calls: those of some steps.
        steps: of which step, part and rank each of these is.
    """
    calls = with_collectives_joined(calls, _uneven(calls, steps)) if v.COMM in calls.stages else calls
    columns = {one.name: getattr(calls, one.name) for one in fields(calls)}
    step, part, rank = (one[calls.rank_step] for one in (steps.step, steps.part, steps.rank))
    table = CallTable(**columns, step=step, part=part, rank=rank, turn=turns(calls.rank_step, calls.stage))
    return Compared(table, call_waits(table))


def _uneven(calls: Calls, steps: RankSteps) -> Flags:
    """Return the steps whose peers have different numbers of calls under no stage.

    Those of each rank become one call at its end: the k-th of one rank would not be the k-th of another.
    """
    is_comm = calls.stage == calls.stages.index(v.COMM)
    counts = np.bincount(calls.rank_step[is_comm], minlength=len(steps.step))
    first, peers = combinations(steps.step, steps.part)
    least, most = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), np.int64)
    np.minimum.at(least, peers, counts)
    np.maximum.at(most, peers, counts)
    is_uneven: Flags = (least != most)[peers]
    return is_uneven


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One step if every rank were like the mean of the ranks.

    Source: the slowdowns S and S_w of ByteDance's what-if analysis (arXiv 2505.05713), here for ranks that share
    collectives and have no pipeline between them.
    """

    actual_s: float
    ideal_s: float
    alone_s: dict[int, float]
    """Its time with this rank as it is and the others ideal."""


class Part(NamedTuple):
    """What the peers of one step did."""

    own_s: dict[str, dict[int, float]]
    """Own time by stage and rank; a rank without the stage has 0. Stages that are inseparable on a rank have none."""
    counts: dict[str, int]
    """Collectives by stage, on the rank that has most."""
    inseparable: frozenset[str]
    """Stages whose collectives cannot be separated on some rank."""
    transfers_ns: dict[str, int]
    """By stage: the least time that any rank was in the collectives without waiting."""
    what_if: WhatIf | None


NO_PART: Final = Part({}, {}, frozenset(), {}, None)


def parts(compared: Compared) -> dict[tuple[int, int], Part]:
    """Sum up the calls in which a rank may be slow, by step and part; one without calls is not there."""
    work = _Work(compared)
    columns = work.own_s(), work.counts(), work.inseparable, work.transfers_ns(), work.what_if()
    return {key: Part(*row) for key, *row in zip(work.parts, *columns, strict=True)}


def own_times(compared: Compared) -> dict[tuple[int, int], dict[str, dict[int, float]]]:
    """Return only the own times of ``parts``."""
    work = _Work(compared)
    return dict(zip(work.parts, work.own_s(), strict=True))


class _Work:
    """The calls in which a rank may be slow; ``part`` numbers the parts of all steps in the order of their calls."""

    def __init__(self, compared: Compared) -> None:
        table = compared.table
        self.stages = table.stages
        first, part = combinations(table.step, table.part)
        rows, place = _in_order(first)
        self.parts = [(int(table.step[row]), int(table.part[row])) for row in rows.tolist()]
        kept = np.flatnonzero(compared.is_work)
        self.part = place[part[kept]]
        self.stage, self.turn, self.rank = table.stage[kept], table.turn[kept], table.rank[kept]
        self.comm, self.count, self.own = table.comm[kept], table.count[kept], table.own_ns[kept]
        self.left = np.maximum(0, table.comm - table.waiting - compared.waits.ns)[kept]
        self.is_least = compared.waits.is_least[kept]
        self.is_separable = table.is_separable[kept]

    @cached_property
    def ranks(self) -> list[list[int]]:
        """The ranks of each part, in the order of their calls."""
        found: list[list[int]] = [[] for _ in self.parts]
        rows, _ = combinations(self.part, self.rank)
        for row in np.sort(rows).tolist():
            found[self.part[row]].append(int(self.rank[row]))
        return found

    @cached_property
    def num_ranks(self) -> Ints:
        return np.array([len(ranks) for ranks in self.ranks], np.int64)

    @cached_property
    def matched(self) -> tuple[Ints, Ints]:
        """The k-th calls of a stage on the ranks of a part: the row of the first, in order, and for each row which."""
        first, key = combinations(self.part, self.stage, self.turn)
        rows, place = _in_order(first)
        return rows, place[key]

    @cached_property
    def inseparable(self) -> list[frozenset[str]]:
        found: list[set[str]] = [set() for _ in self.parts]
        hidden = ~self.is_separable
        for part, stage in {*zip(self.part[hidden].tolist(), self.stage[hidden].tolist(), strict=True)}:
            found[part].add(self.stages[stage])
        return [frozenset(one) for one in found]

    def own_s(self) -> list[dict[str, dict[int, float]]]:
        found: list[dict[str, dict[int, float]]] = [{} for _ in self.parts]
        first, group = combinations(self.part, self.stage, self.rank)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, group, self.own)
        cells = zip(self.part[first].tolist(), self.stage[first].tolist(), self.rank[first].tolist(), strict=True)
        time_of = dict(zip(cells, sums.tolist(), strict=True))
        rows, _ = combinations(self.part, self.stage)
        for row in np.sort(rows).tolist():
            part, stage = int(self.part[row]), int(self.stage[row])
            name = self.stages[stage]
            if name not in self.inseparable[part]:
                found[part][name] = {rank: time_of.get((part, stage, rank), 0) / 1e9 for rank in self.ranks[part]}
        return found

    def counts(self) -> list[dict[str, int]]:
        found: list[dict[str, int]] = [{} for _ in self.parts]
        first, key = self.matched
        most = np.zeros(len(first), np.int64)
        np.maximum.at(most, key, self.count)
        for part, stage, count in zip(
            self.part[first].tolist(), self.stage[first].tolist(), most.tolist(), strict=True
        ):
            name = self.stages[stage]
            found[part][name] = found[part].get(name, 0) + count
        return found

    def transfers_ns(self) -> list[dict[str, int]]:
        """Return what is no wait in calls that all ranks have and whose collectives are separable.

        A stage in which a wait is a lower bound is left out, since its remainder may be waiting, too.
        """
        found: list[dict[str, int]] = [{} for _ in self.parts]
        first, key = self.matched
        least = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(least, key, self.left)
        unknown = {*zip(self.part[self.is_least].tolist(), self.stage[self.is_least].tolist(), strict=True)}
        ranks = self.num_ranks[self.part[first]]
        is_known = (np.bincount(key, minlength=len(first)) == ranks) & ~self._is_hidden(key, len(first)) & (ranks > 1)
        for row, time_ns in zip(first[is_known].tolist(), least[is_known].tolist(), strict=True):
            part, stage = int(self.part[row]), int(self.stage[row])
            if (part, stage) not in unknown:
                name = self.stages[stage]
                found[part][name] = found[part].get(name, 0) + time_ns
        return found

    def _is_hidden(self, key: Ints, size: int) -> Flags:
        """Return in which groups a call is inseparable."""
        flags = np.zeros(size, bool)
        flags[key[~self.is_separable]] = True
        return flags

    def what_if(self) -> list[WhatIf | None]:
        """Compare each part with an ideal one, in which each rank takes the mean of the ranks.

        A call with time in collectives ends a stretch: there the ranks wait for the slowest. That is exact if a stage's
        collectives come at its end. Transfers are the same in both.
        """
        first, key = self.matched
        part = self.part[first]
        is_known = (self.num_ranks > 1) & ~self._is_hidden(self.part, len(self.parts))
        is_known[part[np.bincount(key, minlength=len(first)) != self.num_ranks[part]]] = False
        has_comm, transfer = np.zeros(len(first), bool), np.full(len(first), np.iinfo(np.int64).max)
        has_comm[key[self.comm > 0]] = True
        np.minimum.at(transfer, key, self.comm)
        by_part = np.argsort(part, kind="stable")
        ended = np.zeros(len(first), np.int64)
        ended[by_part] = np.cumsum(has_comm[by_part]) - has_comm[by_part]
        """How many calls with collectives are before each; those of a part follow each other."""
        stretches, stretch = combinations(part, ended)
        after = np.zeros(len(stretches), np.int64)
        after[stretch[has_comm]] = transfer[has_comm]
        times = self._times(stretch[key])
        found: list[list[tuple[dict[int, int], int]]] = [[] for _ in self.parts]
        for one in np.argsort(ended[stretches], kind="stable").tolist():
            of = int(part[stretches[one]])
            found[of].append(({rank: times.get((one, rank), 0) for rank in self.ranks[of]}, int(after[one])))
        return [_ideal(found[of]) if is_known[of] else None for of in range(len(self.parts))]

    def _times(self, stretch: Ints) -> dict[tuple[int, int], int]:
        """Return own time by stretch and rank."""
        rows, cell = combinations(stretch, self.rank)
        sums = np.zeros(len(rows), np.int64)
        np.add.at(sums, cell, self.own)
        return dict(zip(zip(stretch[rows].tolist(), self.rank[rows].tolist(), strict=True), sums.tolist(), strict=True))


def _in_order(first: Ints) -> tuple[Ints, Ints]:
    """Return the first rows of groups in ascending order, and the place of each group in it."""
    order = np.argsort(first, kind="stable")
    return first[order], inverse(order)


def _ideal(stretches: list[tuple[dict[int, int], int]]) -> WhatIf | None:
    actual = ideal = 0.0
    alone: defaultdict[int, float] = defaultdict(float)
    for own, transfer in stretches:
        mean = fmean(own.values())
        actual += transfer + max(own.values())
        ideal += transfer + mean
        for rank, value in own.items():
            alone[rank] += transfer + max(value, mean)
    return WhatIf(actual / 1e9, ideal / 1e9, {rank: time / 1e9 for rank, time in alone.items()}) if ideal else None
