"""Who is called slow, and who is not."""

from __future__ import annotations

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.balance import Slowest, is_straggler, slowest


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=9))
def test_the_slowest_rank_is_compared_with_the_others_only(own_s: list[float]) -> None:
    """Its own time is no part of the median that it is held against."""
    found = slowest(dict(enumerate(own_s)))
    assert found is not None
    assert max(own_s) == found.own_s
    assert median(own_s[: found.rank] + own_s[found.rank + 1 :]) == found.others_s


def test_one_rank_is_compared_with_nobody() -> None:
    """Alone nobody is slow."""
    assert None is slowest({0: 1.0})


def test_a_straggler_needs_a_ratio() -> None:
    """1.2 times the others, and others that do the same work."""
    cases = [Slowest(1, 1.2, 1.0), Slowest(1, 1.19, 1.0), Slowest(0, 5.0, 0.0)]
    assert [True, False, False] == [is_straggler(case) for case in cases]


def test_ranks_that_are_as_slow_tie() -> None:
    """Less than 5 % between them; a rank is never named alone because its number is lower."""
    assert Slowest(2, 3.0, 1.0, tied=(4,)) == slowest({0: 1.0, 1: 1.0, 2: 3.0, 3: 1.0, 4: 2.9})
    assert Slowest(2, 3.0, 1.0) == slowest({0: 1.0, 1: 1.0, 2: 3.0, 3: 1.0, 4: 2.8})
