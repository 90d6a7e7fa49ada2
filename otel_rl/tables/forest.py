"""Who is inside whom among the spans of a writer, by arrays; and unions of the times of many groups at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

Ints = Any
"""An array of whole numbers of 64 bits."""
Flags = Any
"""An array of booleans."""
Array = Any
Seconds = Any
NONE: Final = -1
MISSING: Final = np.iinfo(np.int64).min
"""What a column of whole numbers has where there is no value."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_MOST: Final = 1 << 62


@dataclass(frozen=True, eq=False)
class Forest:
    """Spans in preorder: a span stands right before all that is inside it, siblings in order of their begins."""

    order: Ints
    """The row of each span as it was given."""
    parent: Ints
    """The place of its parent, or ``NONE``."""
    depth: Ints
    size: Ints
    """How many spans it and all that is inside it are."""

    @cached_property
    def place(self) -> Ints:
        """Return the place of each row."""
        return inverse(self.order)

    def below_sum(self, values: Ints) -> Ints:
        """Add up the values of what is inside each span, without its own."""
        sums = np.concatenate(([0], np.cumsum(values)))
        begin = np.arange(len(values)) + 1
        total: Ints = sums[begin - 1 + self.size] - sums[begin]
        return total

    def is_below(self, flags: Flags) -> Flags:
        """Return for each span whether one around it has the flag."""
        marks = np.zeros(len(flags) + 1, np.int64)
        begin = np.flatnonzero(flags)
        np.add.at(marks, begin + 1, 1)
        np.add.at(marks, begin + self.size[begin], -1)
        around: Flags = np.cumsum(marks)[:-1] > 0
        return around


def parents_of(trace: Array, own: Array, parent: Array) -> Ints:
    """Find the parents of spans.

    Args:
        trace: which trace each span is of, any number.
        own: the span's id.
        parent: its parent's id, 0 for none.

    Returns:
        The row of each span's parent; ``NONE`` if it has none, or if that is not there.
    """
    size = len(own)
    with np.errstate(over="ignore"):
        keys, wanted = own ^ trace * _MIX, parent ^ trace * _MIX
    order = np.argsort(keys, kind="stable")
    found = np.minimum(np.searchsorted(keys, wanted, side="right", sorter=order) - 1, size - 1) if size else order
    row = order[found]
    return np.where((keys[row] == wanted) & (parent != 0) & (row != np.arange(size)), row, NONE)


def grow(parents: Ints, begin: Ints) -> Forest:
    """Put spans in preorder.

    Args:
        parents: the row of each span's parent, or ``NONE``.
        begin: its begin, ns.

    Spans of a damaged trace that are around each other are left out of each other: the first of them has no parent.
    """
    size = len(parents)
    parents = parents.copy()
    depth = _depths(parents)
    by_depth = _levels(depth)
    sizes = np.ones(size, np.int64)
    for rows in reversed(by_depth[1:]):
        np.add.at(sizes, parents[rows], sizes[rows])
    place = np.zeros(size, np.int64)
    for level, rows in enumerate(by_depth):
        of = parents[rows] if level else np.zeros(len(rows), np.int64)
        turn = np.lexsort((begin[rows], of))
        siblings, of = rows[turn], of[turn]
        before = np.cumsum(sizes[siblings]) - sizes[siblings]
        first = np.searchsorted(of, of)  # where its siblings begin
        place[siblings] = before - before[first] + (place[of] + 1 if level else 0)
    order = inverse(place)
    above = parents[order]
    return Forest(order, np.where(above == NONE, NONE, place[above]), depth[order], sizes[order])


def _depths(parents: Ints) -> Ints:
    """Return how many spans are around each; opens circles."""
    depth = np.where(parents == NONE, 0, NONE)
    while True:
        open = np.flatnonzero(depth == NONE)
        ready = open[depth[parents[open]] != NONE]
        if len(ready):
            depth[ready] = depth[parents[ready]] + 1
        elif len(open):
            parents[open[0]], depth[open[0]] = NONE, 0
        else:
            return depth


def _levels(depth: Ints) -> list[Ints]:
    order = np.argsort(depth, kind="stable")
    levels: list[Ints] = np.split(order, np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1)))
    return levels


@dataclass(frozen=True, eq=False)
class Inside:
    """All that is inside some spans (roots), in preorder: a span that is inside two of them stands there twice."""

    root: Ints
    """Index of the root."""
    place: Ints
    """Place in the forest."""
    level: Ints
    """1 for what is directly inside."""
    top: Ints
    """Index, in these arrays, of the span of level 1 that it is inside, or is."""
    second: Ints
    """The same of level 2; ``NONE`` at level 1."""


def inside(forest: Forest, roots: Ints) -> Inside:
    """Find all that is inside some places of a forest."""
    sizes = forest.size[roots] - 1
    root = np.repeat(np.arange(len(roots)), sizes)
    place = roots[root] + 1 + ramp(sizes)
    level = forest.depth[place] - forest.depth[roots][root]
    index = np.arange(len(place))
    top = np.maximum.accumulate(np.where(level == 1, index, 0)) if len(place) else index
    last = np.maximum.accumulate(np.where(level <= 2, index, 0)) if len(place) else index
    return Inside(root, place, level, top, np.where(level >= 2, last, NONE))


def ramp(sizes: Ints) -> Ints:
    """Count from 0 for each size: 0, 1, 0, 1, 2 for 2 and 3."""
    ends = np.cumsum(sizes)
    counted: Ints = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    return counted


def inverse(order: Array) -> Ints:
    """Return where each number stands in a permutation."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def combinations(*columns: Ints) -> tuple[Ints, Ints]:
    """Number the combinations of columns: the first row of each, and the number of each row."""
    combined, count = np.zeros(len(columns[0]), np.int64), 1
    for values in columns:
        known = values[values != MISSING]
        least = int(known.min(initial=0)) - 1  # what is missing comes before all values
        column, size = np.maximum(values, least) - least, int(known.max(initial=0)) - least + 1
        if size * count > _MOST:  # as few as there are
            listed, column = np.unique(values, return_inverse=True)
            _, combined = np.unique(combined, return_inverse=True)
            size, count = len(listed), len(combined)
        combined = combined * size + column
        count *= size
    _, first, number = np.unique(combined, return_index=True, return_inverse=True)
    return first, number


def in_order(first: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Number combinations in the order of their first rows."""
    order = np.argsort(first, kind="stable")
    return first[order], inverse(order)[number]


def turns(*columns: Ints) -> Ints:
    """Return which of the rows with its combination of columns each row is."""
    _, key = combinations(*columns)
    turn: Ints = np.empty(len(key), np.int64)
    turn[np.argsort(key, kind="stable")] = ramp(np.bincount(key))
    return turn


def sums(group: Ints, values: Ints, groups: int) -> Ints:
    """Add up whole numbers by group; so many groups there are."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    return total


def union(group: Ints, begin: Ints, end: Ints, groups: int) -> Ints:
    """Return how much time is in at least one of the intervals of each group, ns.

    Args:
        group: the group of each interval, from 0 on.
        begin: of each interval, ns.
        end: of each interval, ns; one that does not end after its begin is empty.
        groups: how many there are.
    """
    total = np.zeros(groups, np.int64)
    kept = np.flatnonzero(end > begin)
    kept = kept[np.lexsort((begin[kept], group[kept]))]
    if not len(kept):
        return total
    group, begin, end = group[kept], begin[kept], end[kept]
    ends, rank = np.unique(end, return_inverse=True)  # a sum of a group and a time could need more than 64 bits
    reached = ends[np.maximum.accumulate(rank + group * len(ends)) - group * len(ends)]
    before = np.concatenate((begin[:1], reached[:-1]))
    is_first = np.concatenate(([True], group[1:] != group[:-1]))
    begin = np.maximum(begin, np.where(is_first, begin, before))
    np.add.at(total, group, np.maximum(0, end - begin))
    return total
