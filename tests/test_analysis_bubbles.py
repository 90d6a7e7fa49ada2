"""Bubbles against a walk over all ticks, skew against simulated ranks, schedules by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.bubbles import Bubbles, Share, bubbles, reason_of, schedule_bubble, skew
from otel_rl.analysis.stragglers import activity
from tests.timelines import Timeline, timelines

times = st.integers(0, 40)
spans = st.lists(st.tuples(times, times), max_size=6)


def has(intervals: list[tuple[int, int]], tick: int) -> bool:
    """Say whether a tick lies in an interval."""
    return any(low <= tick < high for low, high in intervals)


steps = st.tuples(times, times)
waits = st.tuples(spans, spans, spans, spans)


@given(steps, spans, waits, st.booleans())
def test_a_tick_is_one_bubble_at_most(
    step: tuple[int, int], stages: list[tuple[int, int]], found: tuple[list[tuple[int, int]], ...], is_driven: bool
) -> None:
    """Data, queue, pipeline, other, in this order, also inside a stage; under nothing it is a driven rank's only."""
    data, queue, pipeline, other = found
    window = range(*step)
    nothing = sum(not has(stages + data + queue + pipeline + other, tick) for tick in window)
    waited = sum(has(pipeline, tick) and not has(data + queue, tick) for tick in window)
    expected = Bubbles(
        step_ns=len(window),
        data_ns=sum(has(data, tick) for tick in window),
        queue_ns=sum(has(queue, tick) and not has(data, tick) for tick in window),
        pipeline_ns=waited + (nothing if is_driven else 0),
        other_ns=sum(has(other, tick) and not has(data + queue + pipeline, tick) for tick in window),
        skew_ns=3,
    )
    waits = {"data": data, "queue": queue, "pipeline": pipeline, "other": other}
    assert expected == bubbles(step, stages=stages, waits=waits, skew_ns=3, is_driven=is_driven)


def test_a_reason_of_ones_own_is_other() -> None:
    """So is none, and one that only readers of several ranks can give: reasons are labels, so they are few."""
    reasons = ("data", "queue", "pipeline", "other", "", "my lock", "skew")
    assert ["data", "queue", "pipeline", "other", "other", "other", "other"] == list(map(reason_of, reasons))


def test_shares_name_their_denominator() -> None:
    """Each bubble of the step it lies in; a step without time has none."""
    waits = {"data": [(0, 20)], "queue": [(100, 110)], "other": [(50, 60)]}
    found = bubbles((0, 200), stages=[(20, 120)], waits=waits, skew_ns=50, is_driven=True)
    assert {
        "data": Share(0.1, "step"),
        "queue": Share(0.05, "step"),
        "pipeline": Share(0.4, "step"),
        "other": Share(0.05, "step"),
        "skew": Share(0.25, "step"),
    } == found.shares
    assert {} == bubbles((5, 5), stages=[], waits={}).shares
    assert Bubbles(1, 0, 0, 0, 0, 0) == bubbles((5, 6), stages=[], waits={})
    assert 1.0 == bubbles((5, 6), stages=[], waits={"data": [(5, 6)]}).shares["data"].value


@given(timelines())
def test_skew_is_the_wait_where_ranks_meet_after_every_stage(timeline: Timeline) -> None:
    """Then the sum over stages is what an all-seeing clock says, with skewed clocks."""
    met = Timeline(tuple(phase for phase in timeline.phases if phase.transfer is not None), timeline.clocks)
    own = {str(number): dict(enumerate(phase.own)) for number, phase in enumerate(met.phases)}
    played = met.run()
    expected = dict(enumerate(played.wait)) if own else {}
    assert expected == skew(own)
    waited = activity(played.calls, dict(enumerate(played.end)))
    assert expected == {rank: part.wait_ns for rank, part in waited.items() if own}


def test_skew_without_peers_is_none() -> None:
    """A stage of one rank, a stage of nobody."""
    assert {0: 0} == skew({"checkpoint": {0: 9}, "nothing": {}})
    assert {0: 4, 1: 0} == skew({"reward": {0: 5, 1: 9}})


def test_the_schedule_of_a_pipeline() -> None:
    """Four ranks and eight micro-batches idle 3/8 of the ideal time, 3/11 of the step; two chunks halve that."""
    assert (Share(3 / 8, "ideal"), Share(3 / 11, "step")) == schedule_bubble(4, 8)
    assert (Share(3 / 16, "ideal"), Share(3 / 19, "step")) == schedule_bubble(4, 8, chunks=2)
    assert (Share(0.0, "ideal"), Share(0.0, "step")) == schedule_bubble(1, 8)
    with pytest.raises(ValueError, match="a pipeline has ranks"):
        schedule_bubble(4, 0)
