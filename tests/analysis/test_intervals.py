"""Unions of intervals against a brute-force count of every nanosecond."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.intervals import clip, common, covered, merge

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def ticks(pairs: list[tuple[int, int]]) -> set[int]:
    """List every tick that lies under an interval."""
    return {tick for begin, end in pairs for tick in range(begin, end)}


@given(intervals)
def test_covered_counts_every_tick_once(pairs: list[tuple[int, int]]) -> None:
    """Overlapping intervals count once, reversed ones not at all."""
    assert len(ticks(pairs)) == covered(pairs)


@given(intervals)
def test_merged_intervals_are_disjoint_and_cover_the_same(pairs: list[tuple[int, int]]) -> None:
    """Joined intervals lie apart, in order, over the same ticks."""
    merged = merge(pairs)
    assert ticks(pairs) == ticks(merged)
    assert all(first[1] < second[0] for first, second in pairwise(merged))


@given(intervals, st.integers(0, 40), st.integers(0, 40))
def test_clipping_keeps_what_lies_in_the_window(pairs: list[tuple[int, int]], begin: int, end: int) -> None:
    """Only ticks of the window are left."""
    assert ticks(pairs) & set(range(begin, end)) == ticks(clip(pairs, begin, end))


@given(intervals, intervals)
def test_what_is_common_lies_in_both(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    """Each tick once."""
    found = common(merge(first), merge(second))
    assert ticks(first) & ticks(second) == ticks(found)
    assert len(ticks(found)) == sum(end - begin for begin, end in found)
