"""Forests, unions and combinations of columns, against what they mean."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.intervals import covered
from otel_rl.tables.forest import MISSING, combinations, union
from tests.tables.made import ints

TIMES = st.integers(0, 40)
NUMBERS = st.sampled_from([MISSING, -1, 0, 1, 2, 1 << 40, (1 << 63) - 1])


@given(st.lists(st.tuples(st.integers(0, 3), TIMES, TIMES)))
def test_a_union_counts_each_moment_of_a_group_once(intervals: list[tuple[int, int, int]]) -> None:
    """Whatever the intervals of a group share."""
    columns = [np.array(one, np.int64) for one in zip(*intervals, strict=True)] or [np.zeros(0, np.int64)] * 3
    expected = [covered((begin, end) for of, begin, end in intervals if of == group) for group in range(4)]
    group, begin, end = columns
    assert expected == union(group, begin, end, 4).tolist()


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=20))
def test_equal_rows_have_one_number(rows: list[tuple[int, ...]]) -> None:
    """However large the numbers are, and what is missing is a value of its own."""
    columns = [ints(column) for column in zip(*rows, strict=True)] or [ints([])] * 4
    first, number = combinations(*columns)
    assert len({*rows}) == len(first)
    assert rows == [rows[first[one]] for one in number.tolist()]
    assert [rows.index(row) for row in rows] == [first[one] for one in number.tolist()]
