"""Ranks that do the same work, compared in many steps at once: own times, transfers, and what an ideal step would take.

The peers of a step are a ``part``: the ranks of a role, or of one pipeline stage of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stages import LOADING
from otel_rl.tables.calls import Calls, with_collectives_joined
from otel_rl.tables.forest import combinations, in_order, inverse, ramp, sums, turns
from otel_rl.tables.waits import CallTable, CallWaits, call_waits

if TYPE_CHECKING:
    from otel_rl.tables.forest import Flags, Ints, Seconds

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

    steps: RankSteps
    table: CallTable
    waits: CallWaits

    @property
    def is_work(self) -> Flags:
        """Return whether a rank may be slow in a call: in work or in loading data, not in waiting for others."""
        known = [kind_of(one) is not Kind.IDLE or one == LOADING for one in self.table.stages]
        return np.array(known, bool)[self.table.stage]

    def by_rank_step(self, skipped: Sequence[Collection[CallKey]]) -> RankWaits:
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
            flags.append(found)
        is_least, is_least_kept, is_hidden = flags
        return RankWaits(total, is_least, dict(zip(KINDS, by_kind, strict=True)), is_least_kept, is_hidden)


class RankWaits(NamedTuple):
    """How long ranks waited for slower ones in their steps, one after the other."""

    ns: Ints
    """Time waited for slower ranks, without calls that are waits themselves, ns."""
    is_least: Flags
    """It is a lower bound."""
    by_kind: dict[Kind, Ints]
    """The same by the kind of the stage, without updates that were skipped."""
    is_least_kept: Flags
    is_hidden: Flags
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
    return Compared(steps, table, call_waits(table))


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


class StageCells(NamedTuple):
    """A number of each part and stage that has it, in the order of the calls."""

    part: Ints
    stage: Ints
    value: Ints


class OwnTimes(NamedTuple):
    """Own times by part, stage and rank, in the order of the calls."""

    part: Ints
    stage: Ints
    rank: Ints
    ns: Ints
    """0 for a rank of the part that has not the stage."""


class WhatIf(NamedTuple):
    """Parts if every rank were like the mean of the ranks, s; NaN where that cannot be known.

    Source: the slowdowns S and S_w of ByteDance's what-if analysis (arXiv 2505.05713), here for ranks that share
    collectives and have no pipeline between them.
    """

    actual_s: Seconds
    """By part."""
    ideal_s: Seconds
    part: Ints
    rank: Ints
    alone_s: Seconds
    """The time of each part with each of its ranks as it is and the others ideal."""


class PeerWork:
    """The calls in which a rank may be slow, by part: the ranks that are peers in a step.

    Parts are numbered in the order of their steps; one may have no calls.
    """

    def __init__(self, compared: Compared) -> None:
        table, steps = compared.table, compared.steps
        self.stages = table.stages
        self.first, self.part_of = in_order(*combinations(steps.step, steps.part))
        """The first step of each part, and the part of each step of a rank."""
        kept = np.flatnonzero(compared.is_work)
        self.part = self.part_of[table.rank_step[kept]]
        """The part of each call."""
        self.stage, self.turn, self.rank = table.stage[kept], table.turn[kept], table.rank[kept]
        self.comm, self.count, self.own = table.comm[kept], table.count[kept], table.own_ns[kept]
        self.left = np.maximum(0, table.comm - table.waiting - compared.waits.ns)[kept]
        self.is_least = compared.waits.is_least[kept]
        self.is_separable = table.is_separable[kept]
        rows, member = in_order(*combinations(self.part, self.rank))
        by_part = np.argsort(self.part[rows], kind="stable")
        self.part_of_rank, self.ranks = self.part[rows][by_part], self.rank[rows][by_part]
        """The ranks of all parts, those of a part together."""
        self.num_ranks = np.bincount(self.part_of_rank, minlength=len(self.first))
        self.first_rank = np.cumsum(self.num_ranks) - self.num_ranks
        """Where those of each part begin."""
        self.turn_of_rank = inverse(by_part)[member] - self.first_rank[self.part]
        """The place of each call's rank among the ranks of its part."""

    @cached_property
    def matched(self) -> tuple[Ints, Ints]:
        """Match the k-th calls of a stage on the ranks of a part.

        Return the row of the first call of each, in order, and for each call which it is.
        """
        return in_order(*combinations(self.part, self.stage, self.turn))

    @cached_property
    def paired(self) -> tuple[Ints, Ints]:
        """Return what ``matched`` does, for all calls of a stage on the ranks of a part together."""
        return in_order(*combinations(self.part, self.stage))

    @cached_property
    def is_inseparable(self) -> Flags:
        """Return for each of ``paired`` whether its collectives cannot be separated on some rank."""
        return self._any(self.paired, ~self.is_separable)

    @cached_property
    def inseparable(self) -> StageCells:
        """Return the stages whose collectives cannot be separated on some rank."""
        return self._cells(self.paired[0][self.is_inseparable], np.ones(int(self.is_inseparable.sum()), np.int64))

    @cached_property
    def own_times(self) -> OwnTimes:
        """Own times in the stages that are separable on all ranks of a part."""
        first, pair = self.paired
        part, rank, ns = self._by_rank(self.part[first], pair, self.own)
        of_pair = np.repeat(np.arange(len(first)), self.num_ranks[self.part[first]])
        kept = ~self.is_inseparable[of_pair]
        return OwnTimes(part[kept], self.stage[first][of_pair][kept], rank[kept], ns[kept])

    @cached_property
    def counts(self) -> StageCells:
        """Return the number of collectives, of each call on the rank that has most."""
        first, key = self.matched
        most = np.zeros(len(first), np.int64)
        np.maximum.at(most, key, self.count)
        return self._cells(first, most)

    @cached_property
    def transfers(self) -> StageCells:
        """Return what is no wait in calls that all ranks have and whose collectives are separable, ns.

        It is the least time that any rank was in the collectives without waiting. A stage in which a wait is a lower
        bound is left out, since its remainder may be waiting, too.
        """
        first, key = self.matched
        least = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(least, key, self.left)
        ranks = self.num_ranks[self.part[first]]
        is_known = (np.bincount(key, minlength=len(first)) == ranks) & (ranks > 1)
        is_known &= ~self._any(self.matched, ~self.is_separable)
        is_known &= ~self._any(self.paired, self.is_least)[self.paired[1]][first]
        return self._cells(first[is_known], least[is_known])

    @cached_property
    def what_if(self) -> WhatIf:
        """Return each part and an ideal one, in which each rank takes the mean of the ranks.

        A call with time in collectives ends a stretch: there the ranks wait for the slowest. That is exact if a stage's
        collectives come at its end. Transfers are the same in both.
        """
        first, key = self.matched
        part, parts = self.part[first], len(self.first)
        is_known = self.num_ranks > 1
        is_known[self.part[~self.is_separable]] = False
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
        of = part[stretches]
        sizes = self.num_ranks[of]
        begin = np.cumsum(sizes) - sizes
        *_, own = self._by_rank(of, stretch[key], self.own)
        mean, most = (one.reduceat(own, begin) if len(own) else own for one in (np.add, np.maximum))
        mean = mean / sizes
        actual, ideal = np.zeros(parts), np.zeros(parts)
        np.add.at(actual, of, after + most)
        np.add.at(ideal, of, after + mean)
        alone = np.zeros(len(self.ranks))
        place = np.repeat(self.first_rank[of], sizes) + ramp(sizes)
        np.add.at(alone, place, np.repeat(after, sizes) + np.maximum(own, np.repeat(mean, sizes)))
        is_known &= ideal > 0
        is_kept = is_known[self.part_of_rank]
        return WhatIf(
            np.where(is_known, actual / 1e9, np.nan),
            np.where(is_known, ideal / 1e9, np.nan),
            self.part_of_rank[is_kept],
            self.ranks[is_kept],
            alone[is_kept] / 1e9,
        )

    def _cells(self, rows: Ints, values: Ints) -> StageCells:
        """Add up values of some calls by part and stage."""
        first, cell = in_order(*combinations(self.part[rows], self.stage[rows]))
        return StageCells(self.part[rows][first], self.stage[rows][first], sums(cell, values, len(first)))

    def _any(self, groups: tuple[Ints, Ints], flags: Flags) -> Flags:
        """Return which groups have a call with a flag."""
        found = np.zeros(len(groups[0]), bool)
        found[groups[1][flags]] = True
        return found

    def _by_rank(self, part: Ints, group: Ints, values: Ints) -> tuple[Ints, Ints, Ints]:
        """Add up values of calls by group and rank.

        Args:
            part: that of each group.
            group: that of each call.
            values: of the calls.

        Returns:
            For each group and each rank of its part: the part, the rank, and the sum.
        """
        sizes = self.num_ranks[part]
        begin, of = np.cumsum(sizes) - sizes, np.repeat(part, sizes)
        return (
            of,
            self.ranks[self.first_rank[of] + ramp(sizes)],
            sums(begin[group] + self.turn_of_rank, values, len(of)),
        )


def own_times(compared: Compared) -> dict[tuple[int, int], dict[str, dict[int, float]]]:
    """Return the own times by step and part, in each by stage and rank, s."""
    work = PeerWork(compared)
    keys = [*zip(compared.steps.step[work.first].tolist(), compared.steps.part[work.first].tolist(), strict=True)]
    found: dict[tuple[int, int], dict[str, dict[int, float]]] = {}
    for part, stage, rank, ns in zip(*(one.tolist() for one in work.own_times), strict=True):
        found.setdefault(keys[part], {}).setdefault(work.stages[stage], {})[rank] = ns / 1e9
    return found


def between_stages(part: Ints, other: Ints, waited: Ints) -> Ints:
    """Return how long ranks worked under no stage in their steps, ns.

    A rank may wait there for what no hook sees: a store, a device, a file of another rank. So more than the least of
    the ranks counts only as far as a peer waited longer in collectives than this rank.

    Args:
        part: those with the same number are peers in a step.
        other: time under no stage, ns.
        waited: time waited in collectives for slower ranks, ns.
    """
    size = int(part.max(initial=-1)) + 1
    least, longest = np.full(size, np.iinfo(np.int64).max), np.zeros(size, np.int64)
    np.minimum.at(least, part, other)
    np.maximum.at(longest, part, waited)
    between: Ints = np.minimum(other, (least + longest)[part] - waited)
    return between
