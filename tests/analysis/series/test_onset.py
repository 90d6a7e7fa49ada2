"""Since when something is so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.series.onset import first_above, onset


@pytest.mark.parametrize(
    ("flags", "index"),
    [
        ("", None),
        ("111", 0),
        ("000", None),
        ("0001111", 3),
        ("1110000", None),
        ("0000001", None),
        ("1001111111111", 3),
        ("0111101111111111", 1),
        ("01011010111111111111111", 8),
        ("1111111111000", None),
        ("11", 0),
        ("01", None),
    ],
)
def test_it_begins_where_it_holds_to_the_end(flags: str, index: int | None) -> None:
    """Single lapses are allowed, three in a row begin it and end it."""
    assert onset([flag == "1" for flag in flags]) == index


@given(st.lists(st.booleans(), max_size=80), st.floats(0.5, 1.0))
def test_from_an_onset_on_it_holds(flags: list[bool], share: float) -> None:
    """In at least the share of the rest, the first and the last three included."""
    start = onset(flags, share)
    if start is not None:
        rest = flags[start:]
        assert sum(rest) >= share * len(rest)
        assert all(rest[:3])
        assert all(rest[-3:])


@given(st.integers(0, 50), st.integers(3, 50))
def test_a_clean_change_is_found_exactly(before: int, after: int) -> None:
    """Whatever the lengths are."""
    assert onset([False] * before + [True] * after) == before


def test_the_first_value_above_a_limit() -> None:
    """A value equal to the limit counts."""
    assert first_above([0.1, 0.5, 0.9], 0.5) == 1
    assert first_above([0.1], 0.5) is None
