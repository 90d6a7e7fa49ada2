"""Ranks that do the same work, compared in many steps at once: own times, transfers, and what an ideal step would take.

The peers of a step are a ``part``: the ranks of a role, or of one pipeline stage of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import Kind, kind_of
from otel_rl.analysis.stages import LOADING
from otel_rl.tables.calls import Calls, with_collectives_joined
from otel_rl.tables.forest import combinations, ramp
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
    """Those of one number are compared."""
    part: Ints
    """Those that do the same work in a step: its pipeline stage."""
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
    """In its calls that are no waits themselves."""
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
    table = CallTable(**columns, step=step, part=part, rank=rank, turn=_turns(calls.rank_step, calls.stage))
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


def _turns(of: Ints, stage: Ints) -> Ints:
    """Return which of the calls of its stage each call of a rank is."""
    _, key = combinations(of, stage)
    order = np.argsort(key, kind="stable")
    turns = np.empty(len(key), np.int64)
    turns[order] = ramp(np.bincount(key))
    return turns


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
    return _Parts(compared).listed()


class _Parts:
    def __init__(self, compared: Compared) -> None:
        self.compared, table = compared, compared.table
        first, number_of = combinations(table.step, table.part)
        order = np.argsort(first, kind="stable")
        place = np.empty(len(first), np.int64)
        place[order] = np.arange(len(first))
        self.size = len(first)
        rows = first[order].tolist()
        self.keys = [(int(table.step[row]), int(table.part[row])) for row in rows]
        kept = np.flatnonzero(compared.is_work)
        self.part = place[number_of][kept] if len(kept) else kept
        self.stage, self.turn, self.rank = table.stage[kept], table.turn[kept], table.rank[kept]
        self.comm, self.count = table.comm[kept], table.count[kept]
        self.left = np.maximum(0, table.comm - table.waiting - compared.waits.ns)[kept]
        self.is_least = compared.waits.is_least[kept]
        self.is_separable = table.is_separable[kept]
        self.own: Ints = table.own_ns[kept]
        _, self.rank_of = combinations(self.part, self.rank)
        ranks, _ = combinations(self.rank_of)
        self.ranks = np.bincount(self.part[ranks], minlength=self.size) if len(ranks) else np.zeros(self.size, np.int64)

    def listed(self) -> dict[tuple[int, int], Part]:
        """Return all parts."""
        stages = self.compared.table.stages
        own: list[dict[str, dict[int, float]]] = [{} for _ in range(self.size)]
        inseparable: list[set[str]] = [set() for _ in range(self.size)]
        counts: list[Counter[str]] = [Counter() for _ in range(self.size)]
        transfers: list[dict[str, int]] = [{} for _ in range(self.size)]
        hidden, _ = combinations(self.part[~self.is_separable], self.stage[~self.is_separable])
        for row in np.flatnonzero(~self.is_separable)[hidden].tolist():
            inseparable[self.part[row]].add(stages[self.stage[row]])
        self._own_times(own, inseparable)
        self._counts(counts)
        self._transfers(transfers)
        ifs = self._what_if()
        return {
            key: Part(own[part], dict(counts[part]), frozenset(inseparable[part]), transfers[part], ifs.get(part))
            for part, key in enumerate(self.keys)
        }

    def _own_times(self, own: list[dict[str, dict[int, float]]], inseparable: list[set[str]]) -> None:
        first, group = combinations(self.part, self.stage, self.rank)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, group, self.own)
        time_of = {
            (part, stage, rank): own_ns
            for part, stage, rank, own_ns in zip(
                *(one[first].tolist() for one in (self.part, self.stage, self.rank)), sums.tolist(), strict=True
            )
        }
        ranks: list[list[int]] = [[] for _ in range(self.size)]
        rows, _ = combinations(self.rank_of)
        for row in np.sort(rows).tolist():
            ranks[self.part[row]].append(int(self.rank[row]))
        first, _ = combinations(self.part, self.stage)
        for row in np.sort(first).tolist():
            part, stage = int(self.part[row]), int(self.stage[row])
            name = self.compared.table.stages[stage]
            if name not in inseparable[part]:
                own[part][name] = {rank: time_of.get((part, stage, rank), 0) / 1e9 for rank in ranks[part]}

    def _counts(self, counts: list[Counter[str]]) -> None:
        first, key = combinations(self.part, self.stage, self.turn)
        most = np.zeros(len(first), np.int64)
        np.maximum.at(most, key, self.count)
        for part, stage, count in zip(
            self.part[first].tolist(), self.stage[first].tolist(), most.tolist(), strict=True
        ):
            counts[part][self.compared.table.stages[stage]] += count

    def _transfers(self, transfers: list[dict[str, int]]) -> None:
        """Calls that only some ranks have, or whose collectives are inseparable, do not count.

        A stage in which a wait is a lower bound is left out, since its remainder may be waiting, too.
        """
        first, key = combinations(self.part, self.stage, self.turn)
        least = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(least, key, self.left)
        present = np.bincount(key, minlength=len(first))
        is_hidden = np.zeros(len(first), bool)
        is_hidden[key[~self.is_separable]] = True
        unknown = {*zip(self.part[self.is_least].tolist(), self.stage[self.is_least].tolist(), strict=True)}
        part, ranks = self.part[first], self.ranks[self.part[first]]
        kept = np.flatnonzero((present == ranks) & ~is_hidden & (ranks > 1))
        for place in kept[np.argsort(first[kept], kind="stable")].tolist():
            of = int(part[place]), int(self.stage[first[place]])
            if of not in unknown:
                name = self.compared.table.stages[of[1]]
                transfers[of[0]][name] = transfers[of[0]].get(name, 0) + int(least[place])

    def _what_if(self) -> dict[int, WhatIf]:
        """Compare each part with an ideal one, in which each rank takes the mean of the ranks.

        A call with time in collectives ends a stretch: there the ranks wait for the slowest. That is exact if a stage's
        collectives come at its end. Transfers are the same in both.
        """
        first, key = combinations(self.part, self.stage, self.turn)
        order = np.argsort(first, kind="stable")
        place = np.empty(len(first), np.int64)
        place[order] = np.arange(len(first))
        key, first = place[key], first[order]
        """Keys in the order in which they come; those of a part are together in each rank's calls, not in all."""
        part = self.part[first]
        present = np.bincount(key, minlength=len(first))
        bad = np.zeros(self.size, bool)
        bad[part[present != self.ranks[part]]] = True
        bad[self.part[~self.is_separable]] = True
        bad[self.ranks < 2] = True
        has_comm, transfer = np.zeros(len(first), bool), np.full(len(first), np.iinfo(np.int64).max)
        has_comm[key[self.comm > 0]] = True
        np.minimum.at(transfer, key, self.comm)
        by_part = np.lexsort((np.arange(len(first)), part))
        ended = np.zeros(len(first), np.int64)
        ended[by_part] = np.cumsum(has_comm[by_part]) - has_comm[by_part]
        """How many keys with collectives are before each."""
        stretches, stretch = combinations(part, ended)
        times: dict[tuple[int, int], int] = {}
        rows, cell = combinations(stretch[key], self.rank)
        sums = np.zeros(len(rows), np.int64)
        np.add.at(sums, cell, self.own)
        for row, own_ns in zip(rows.tolist(), sums.tolist(), strict=True):
            times[int(stretch[key[row]]), int(self.rank[row])] = own_ns
        after = np.zeros(len(stretches), np.int64)
        after[stretch[has_comm]] = transfer[has_comm]
        ranks: list[list[int]] = [[] for _ in range(self.size)]
        of_rank, _ = combinations(self.rank_of)
        for row in np.sort(of_rank).tolist():
            ranks[self.part[row]].append(int(self.rank[row]))
        of_part: list[list[int]] = [[] for _ in range(self.size)]
        for one in np.argsort(ended[stretches], kind="stable").tolist():
            of_part[part[stretches[one]]].append(one)
        found = {}
        for number_of in np.flatnonzero(~bad).tolist():
            made = _ideal(
                [
                    ({rank: times.get((one, rank), 0) for rank in ranks[number_of]}, int(after[one]))
                    for one in of_part[number_of]
                ]
            )
            if made is not None:
                found[number_of] = made
        return found


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
