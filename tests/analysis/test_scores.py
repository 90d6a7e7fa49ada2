"""Scores of NVRx by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.scores import SectionTime, own_score, relative_scores, score, weighted_scores

times = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8)


@given(times)
def test_the_fastest_rank_scores_one(medians: list[float]) -> None:
    """The others by how much longer they take."""
    found = relative_scores(dict(enumerate(medians)))
    assert {rank: min(medians) / value for rank, value in enumerate(medians)} == pytest.approx(found)
    assert 1.0 == max(found.values())


@given(times)
def test_a_rank_is_compared_with_its_own_best(medians: list[float]) -> None:
    """Slower than ever before: below 1. A tenth of the calls has the same time each."""
    calls = [time_s for time_s in medians for _ in range(5)]
    expected = min(medians) / medians[-1] if len(medians) > 1 else None
    assert expected == pytest.approx(own_score({"forward": [math.nan, *calls]}))


def test_twice_as_slow_scores_a_half() -> None:
    """That is below NVRx's limit of 0.75, a third slower is not; without time everybody is fast."""
    assert {0: 1.0, 1: 0.5, 2: 0.76} == relative_scores({0: 0.76, 1: 1.52, 2: 1.0})
    assert {0: 1.0, 1: 0.0} == relative_scores({0: 0.0, 1: 1.0})
    assert {} == relative_scores({})


def test_the_score_of_a_rank_is_weighted_by_time() -> None:
    """(1.0 x 9 s + 0.5 x 1 s) / 10 s; a section that a rank lacks does not count."""
    sections = {
        "a": {"forward": SectionTime(0.1, 9.0), "reward": SectionTime(0.2, 1.0), "save": SectionTime(1.0, 99.0)},
        "b": {"forward": SectionTime(0.2, 18.0), "reward": SectionTime(0.1, 0.5)},
    }
    assert {"a": 0.95, "b": (0.5 * 18 + 1.0 * 0.5) / 18.5} == pytest.approx(weighted_scores(sections))


def test_nothing_in_common_has_no_score() -> None:
    """No rank, other sections, no time."""
    assert {} == weighted_scores({})
    assert {} == weighted_scores({0: {"a": SectionTime(1, 1)}, 1: {"b": SectionTime(1, 1)}})
    assert {0: 1.0} == weighted_scores({0: {"a": SectionTime(0, 0)}})


def test_scores_are_finite() -> None:
    """A first report of a section that took no time."""
    assert math.isclose(1.0, score(0.0, 0.0))
