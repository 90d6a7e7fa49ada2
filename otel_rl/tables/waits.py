"""Who waited for slower ranks in the collectives of many steps: by durations, never by two clocks.

Ranks leave a collective together, so the one that was in it for the shortest time came last. A wait is the larger of
two lower bounds:

1. The sum of duration - least over the collectives of a call that were seen on several ranks, peers or not. It is the
   wait itself if every collective of the call was seen on every rank of its group.
2. The time in all collectives of the call - the least of any peer. It holds only if all peers were in the same
   collectives, and is the wait itself if there was a single one. If some were not seen one by one, it is used unless
   the step has collectives of only some peers, or the times of the call forbid it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_rl.tables.calls import Calls
from otel_rl.tables.forest import combinations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_rl.tables.forest import Flags, Ints

_LARGEST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class CallTable(Calls):
    """Calls of the ranks of a role."""

    step: Ints
    """Number of the step; ranks with the same number are compared."""
    part: Ints
    """Pipeline stage; ranks with the same one do the same work."""
    rank: Ints
    turn: Ints
    """Which of the calls of its stage on its rank in the step it is."""

    @cached_property
    def met_group(self) -> Ints:
        return self._numbered([group for group, *_ in self.meetings])

    @cached_property
    def met_operation(self) -> Ints:
        return self._numbered([operation for _, operation, _ in self.meetings])

    def _numbered(self, names: list[str]) -> Ints:
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return np.array([known[name] for name in names] or [0], np.int64)[self.met.meeting]


class CallWaits(NamedTuple):
    """How long a rank waited in each call, ns; 0 where that cannot be known."""

    ns: Ints
    is_least: Flags
    """It is a lower bound: not every collective was seen on every rank of its group."""


def call_waits(calls: CallTable) -> CallWaits:
    """Return how long each rank waited for slower ones in each call."""
    peers = _Peers(calls)
    seen, is_partly = _seen_waits(calls)
    is_whole, is_single = peers.is_whole(), peers.is_single()
    met = np.where(calls.is_separable, calls.met_ns, 0)
    least = peers.least(np.where(calls.is_separable, met, _LARGEST))
    whole = np.where(is_whole[peers.key] & calls.is_separable, met - least[peers.key], 0)
    ns = np.where(calls.is_separable, np.minimum(met, np.maximum(whole, seen)), 0)
    is_exact = (is_whole & is_single)[peers.key]
    is_least = ~is_exact & calls.is_separable & (is_partly | ((calls.omitted > 0) & calls.has_others))
    return CallWaits(ns, is_least)


class _Peers:
    """The k-th calls of a stage on the ranks that do the same work, matched (``key``)."""

    def __init__(self, calls: CallTable) -> None:
        self.calls, self.met, self.size = calls, calls.met, calls.met_size
        size = len(calls.step)
        part, self.part = combinations(calls.step, calls.part)
        key, self.key = combinations(self.part, calls.stage, calls.turn)
        self.keys = len(key)
        self.part_of = self.part[key] if size else self.part
        """The part of each key."""
        ranks, _ = combinations(self.part, calls.rank)
        self.ranks = np.bincount(self.part[ranks], minlength=len(part))
        self.present = np.bincount(self.key, minlength=self.keys)
        self.rows = np.bincount(self.met.call, minlength=size)
        self.has_rows = self.rows > 0

    def least(self, values: Ints) -> Ints:
        least = np.full(self.keys, _LARGEST)
        np.minimum.at(least, self.key, values)
        return least

    def _most(self, values: Ints) -> Ints:
        return -self.least(-values)

    def _any(self, key: Ints) -> Flags:
        flags = np.zeros(self.keys, bool)
        flags[key] = True
        return flags

    def is_whole(self) -> Flags:
        """Return of which keys all peers were in the same collectives, as far as is known."""
        calls, met = self.calls, self.met
        is_all = self.present == self.ranks[self.part_of]
        is_alike = self.least(calls.count) == self._most(calls.count)
        sign = self._signatures()
        rows = np.flatnonzero(self.has_rows)
        least, most = np.full(self.keys, np.iinfo(np.uint64).max, np.uint64), np.zeros(self.keys, np.uint64)
        np.minimum.at(least, self.key[rows], sign[rows])
        np.maximum.at(most, self.key[rows], sign[rows])
        is_alike &= (least == most) | ~self._any(self.key[rows])
        of_met = self.key[met.call]
        is_alike &= ~self._any(of_met[(self.size > 0) & (self.size < self.present[of_met])])
        is_cut = self._any(self.key[(calls.omitted > 0) & (calls.count > 1)])
        has_smaller = np.zeros(len(self.ranks), bool)
        part = self.part[met.call]
        has_smaller[part[(self.size > 1) & (self.size < self.ranks[part])]] = True
        return is_all & is_alike & (~is_cut | (~has_smaller[self.part_of] & self._can_be_same()))

    def _signatures(self) -> NDArray[np.uint64]:
        """Return a number for the set of groups of each call."""
        pairs, _ = combinations(self.met.call, self.calls.met_group)
        call, group = self.met.call[pairs], self.calls.met_group[pairs].astype(np.uint64)
        with np.errstate(over="ignore"):
            mixed = (group + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
        sign = np.zeros(len(self.calls.step), np.uint64)
        np.bitwise_xor.at(sign, call, mixed)
        return sign

    def _can_be_same(self) -> Flags:
        """Return of which keys the ranks can have been in the same collectives: of some only the longest were seen.

        From the end of the first collective to that of the last, all ranks take equally long. So all but the longest
        one must fit into the call of each rank, unless a call is nothing but its collectives.
        """
        calls, met = self.calls, self.met
        is_nothing_else = self._any(self.key[calls.duration <= calls.comm])
        longest = np.zeros(len(calls.step), np.int64)
        np.maximum.at(longest, met.call, met.duration)
        is_shown = self.has_rows & (calls.omitted + self.rows == calls.count)
        others = self._most(np.where(is_shown, calls.met_ns - longest, -_LARGEST))
        others = np.where(self._any(self.key[is_shown]), others, 0)
        return is_nothing_else | (others <= self.least(calls.duration))

    def is_single(self) -> Flags:
        """Return of which keys the ranks shared a single collective, with no other rank in it."""
        is_one = (self.least(self.calls.count) == 1) & (self._most(self.calls.count) == 1)
        of_met = self.key[self.met.call]
        return is_one & ~self._any(of_met[(self.size != 0) & (self.size != self.present[of_met])])


def _seen_waits(calls: CallTable) -> tuple[Ints, Flags]:
    """Add up the waits in collectives that were seen on several ranks; one seen twice on a rank does not count.

    Returns:
        The waits by call, and the calls with a collective that was not seen on all ranks of its group: the rank that
        all waited for may be missing there, so they may have waited for longer.
    """
    met = calls.met
    step, stage, turn, rank = (one[met.call] for one in (calls.step, calls.stage, calls.turn, calls.rank))
    _, place = combinations(stage, turn)
    names = step, calls.met_group, calls.met_operation, met.sequence, np.where(met.sequence == 0, place + 1, 0)
    found = match(names, rank, met.duration)
    size, number = calls.met_size[found.first], found.number
    is_counted = ~found.is_twice & (found.count <= size)
    waits, is_partly = np.zeros(len(calls.step), np.int64), np.zeros(len(calls.step), bool)
    np.add.at(waits, met.call, np.where(is_counted[number], found.wait, 0))
    is_partly[met.call[(found.is_twice | (found.count != size))[number]]] = True
    return waits, is_partly


class Matched(NamedTuple):
    """Collectives that were seen on ranks, matched over the ranks."""

    first: Ints
    """A row of each."""
    number: Ints
    """Of each row: which of them it is."""
    count: Ints
    """The ranks that each was seen on."""
    is_twice: Flags
    """A rank seems to have been in it twice."""
    wait: Ints
    """Of each row: for how much longer its rank was in it than the one that came last."""


def match(names: Sequence[Ints], rank: Ints, duration: Ints) -> Matched:
    """Match collectives over ranks, and find the waits in them.

    Args:
        names: columns that are equal where the collective is the same.
        rank: whose each is.
        duration: of each, ns.
    """
    first, number = combinations(*names)
    seen, of_rank = combinations(number, rank)
    is_twice = np.zeros(len(first), bool)
    is_twice[number[seen[np.bincount(of_rank, minlength=len(seen)) > 1]]] = True
    least = np.full(len(first), _LARGEST)
    np.minimum.at(least, number, duration)
    count = np.bincount(number[seen], minlength=len(first))
    return Matched(first, number, count, is_twice, duration - least[number])
