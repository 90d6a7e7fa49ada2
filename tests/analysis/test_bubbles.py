"""Bubbles against a walk over all ticks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.bubbles import Bubbles, Share, bubbles, reason_of

times = st.integers(0, 40)
spans = st.lists(st.tuples(times, times), max_size=6)


def has(intervals: list[tuple[int, int]], tick: int) -> bool:
    """Say whether a tick lies in an interval."""
    return any(low <= tick < high for low, high in intervals)


steps = st.tuples(times, times)
waits = st.tuples(spans, spans, spans, spans)


@given(steps, waits)
def test_a_tick_is_one_bubble_at_most(step: tuple[int, int], found: tuple[list[tuple[int, int]], ...]) -> None:
    """Data, queue, pipeline, other, in this order."""
    data, queue, pipeline, other = found
    window = range(*step)
    expected = Bubbles(
        step_ns=len(window),
        data_ns=sum(has(data, tick) for tick in window),
        queue_ns=sum(has(queue, tick) and not has(data, tick) for tick in window),
        pipeline_ns=sum(has(pipeline, tick) and not has(data + queue, tick) for tick in window),
        other_ns=sum(has(other, tick) and not has(data + queue + pipeline, tick) for tick in window),
    )
    waits = {"data": data, "queue": queue, "pipeline": pipeline, "other": other}
    assert expected == bubbles(step, waits)


def test_a_reason_of_ones_own_is_other() -> None:
    """So is none, and one that only readers of several ranks can give: reasons are labels, so they are few."""
    reasons = ("data", "queue", "pipeline", "other", "", "my lock", "skew")
    assert ["data", "queue", "pipeline", "other", "other", "other", "other"] == list(map(reason_of, reasons))


def test_shares_name_their_denominator() -> None:
    """Each bubble of the step it lies in; a step without time has none."""
    waits = {"data": [(0, 20)], "queue": [(100, 110)], "pipeline": [(120, 200)], "other": [(50, 60)]}
    found = bubbles((0, 200), waits)
    assert {
        "data": Share(0.1, "step"),
        "queue": Share(0.05, "step"),
        "pipeline": Share(0.4, "step"),
        "other": Share(0.05, "step"),
    } == found.shares
    assert {} == bubbles((5, 5), {}).shares
    assert Bubbles(1, 0, 0, 0, 0) == bubbles((5, 6), {})
    assert 1.0 == bubbles((5, 6), {"data": [(5, 6)]}).shares["data"].value
