"""Unions and partitions of time intervals: stages overlap, so their times are never simply added."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]
"""Begin and end in ns; one that ends before it begins counts as empty."""


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Join overlapping and touching intervals into disjoint ones, in order of time."""
    merged: list[Interval] = []
    for interval in sorted(intervals):
        begin, end = interval
        if end > begin:
            if not merged or begin > merged[-1][1]:
                merged.append(interval)
            elif end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
    return merged


def covered(intervals: Iterable[Interval]) -> int:
    """Return how much time lies in at least one of the intervals, ns."""
    return sum(end - begin for begin, end in merge(intervals))


def clip(intervals: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    cut = [(max(begin, low), min(end, high)) for low, high in intervals]
    return [one for one in cut if one[0] < one[1]]


def partition(layers: Sequence[Iterable[Interval]], begin: int, end: int) -> tuple[int, ...]:
    """Assign each moment of a window to the first layer that has it.

    Returns:
        The time of each layer, then the time in none; they add up to the window exactly.
    """
    parts: list[int] = []
    reached: list[Interval] = []
    total = before = 0
    for layer in layers:
        inside = clip(layer, begin, end)
        if inside:
            reached = merge(reached + inside)
            total = sum([high - low for low, high in reached])
        parts.append(total - before)
        before = total
    return (*parts, max(0, end - begin) - total)


def common(few: Iterable[Interval], many: Sequence[Interval]) -> list[Interval]:
    """Return what lies in both of two lists of disjoint intervals in order of time; the second may be long."""
    found: list[Interval] = []
    for begin, end in few:
        place = max(0, bisect_left(many, (begin, begin)) - 1)
        while place < len(many) and many[place][0] < end:
            found += clip([many[place]], begin, end)
            place += 1
    return found
