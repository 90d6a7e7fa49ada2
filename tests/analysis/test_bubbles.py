"""Bubbles against a walk over all ticks."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.bubbles import PERCENTS, bubble, bubbles, reason_of, tail

times = st.integers(0, 40)
spans = st.lists(st.tuples(times, times), max_size=6)


def has(intervals: list[tuple[int, int]], tick: int) -> bool:
    """Say whether a tick lies in an interval."""
    return any(low <= tick < high for low, high in intervals)


steps = st.tuples(times, times)
waits = st.tuples(spans, spans, spans, spans, spans)


@given(steps, waits)
def test_a_tick_is_one_bubble_at_most(step: tuple[int, int], found: tuple[list[tuple[int, int]], ...]) -> None:
    """Data, queue, pipeline, controller, other, in this order."""
    data, queue, pipeline, controller, other = found
    window = range(*step)
    expected = (
        sum(has(data, tick) for tick in window),
        sum(has(queue, tick) and not has(data, tick) for tick in window),
        sum(has(pipeline, tick) and not has(data + queue, tick) for tick in window),
        sum(has(controller, tick) and not has(data + queue + pipeline, tick) for tick in window),
        sum(has(other, tick) and not has(data + queue + pipeline + controller, tick) for tick in window),
    )
    waits = {"data": data, "queue": queue, "pipeline": pipeline, "controller": controller, "other": other}
    assert expected == bubbles(step, waits)


def test_a_reason_of_ones_own_is_other() -> None:
    """So is none, and one that only readers of several ranks can give: reasons are labels, so they are few."""
    reasons = ("data", "queue", "pipeline", "other", "", "my lock", "skew")
    assert ["data", "queue", "pipeline", "other", "other", "other", "other"] == list(map(reason_of, reasons))


def test_bubbles_lie_in_their_step() -> None:
    """Each is cut to the step that it lies in; a step without time has none."""
    waits = {"data": [(0, 20)], "queue": [(100, 110)], "pipeline": [(120, 900)], "other": [(50, 60)]}
    assert (20, 10, 80, 0, 10) == bubbles((0, 200), waits)
    assert (0, 0, 0, 0, 0) == bubbles((5, 5), {}) == bubbles((5, 6), {})


REQUESTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=120)
"""Start and duration of each."""


@given(REQUESTS, st.sampled_from(PERCENTS), st.integers(0, 30))
def test_the_tail_is_the_time_in_which_only_the_slowest_run(
    requests: list[tuple[int, int]], percent: int, later: int
) -> None:
    """Counted tick by tick: from the tick at which all but the slowest p had finished to the last finish."""
    ends = sorted(start + lasted for start, lasted in requests)
    wall = ends[-1] + later
    actual = tail(ends, percent, wall)
    slow = len(ends) * percent // 100
    if not slow or not wall:
        assert actual is None
        return
    ticks = sum(sum(end <= tick for end in ends) >= len(ends) - slow for tick in range(ends[-1]))
    assert pytest.approx(ticks / wall) == actual
    assert 0 <= actual <= 1


@given(REQUESTS, st.integers(0, 30))
def test_the_bubble_is_the_idle_time_of_slots_at_the_end(requests: list[tuple[int, int]], later: int) -> None:
    """Counted tick by tick and slot by slot."""
    ends = sorted(start + lasted for start, lasted in requests)
    last_start = max(start for start, _ in requests)
    wall = ends[-1] + later
    actual = bubble(ends, last_start, wall)
    slots = sum(end > last_start for end in ends)
    if not slots or not wall:
        assert actual is None
        return
    idle = sum(slots - sum(end > tick for end in ends) for tick in range(last_start, ends[-1]))
    assert pytest.approx(float(Fraction(idle, slots * wall))) == actual
    assert 0 <= actual <= 1


@given(REQUESTS, st.integers(1, 1000))
def test_the_unit_does_not_matter(requests: list[tuple[int, int]], factor: int) -> None:
    """Seconds or nanoseconds."""
    ends = sorted(start + lasted for start, lasted in requests)
    scaled = [end * factor for end in ends]
    for percent in PERCENTS:
        assert pytest.approx(tail(ends, percent, ends[-1])) == tail(scaled, percent, ends[-1] * factor)
    assert pytest.approx(bubble(ends, ends[0], ends[-1])) == bubble(scaled, ends[0] * factor, ends[-1] * factor)


def test_without_requests_or_time_nothing_is_said() -> None:
    """Nor of a percentage that is less than one request."""
    assert (None, None, None, None) == (tail([], 10, 5), tail([1] * 9, 10, 5), tail([1] * 10, 10, 0), bubble([], 0, 5))
    assert (None, None) == (bubble([5], 5, 5), bubble([5], 1, 0))


def test_a_finish_after_the_end_of_the_rollout_counts_as_its_end() -> None:
    """A share is at most 1."""
    assert (1.0, 1.0) == (tail([1, 50], 50, 10), bubble([1, 50], 0, 10))
