"""Scores of NVRx by hand, and the what-if slowdown against a simulation."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.scores import SectionTime, WhatIf, own_score, relative_scores, score, weighted_scores, what_if
from otel_rl.analysis.stage_calls import StageCall
from tests.timelines import Phase, Timeline, timelines

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


def ideal(timeline: Timeline, but: int | None = None) -> int | float:
    """Play the timeline stretch by stretch with every rank at the mean, except for one; say when the last rank ends."""
    now = 0.0
    own = [0] * len(timeline.clocks)
    for phase in (*timeline.phases, Phase("end", tuple(0 for _ in own), 0)):
        own = [old + new for old, new in zip(own, phase.own, strict=True)]
        if phase.transfer is not None:
            mean = fmean(own)
            now += max([mean] if but is None else [mean, own[but]]) + phase.transfer
            own = [0] * len(own)
    return now


def is_met(phase: Phase) -> bool:
    """Say whether durations show the collective: one without transfer in which nobody waits does not."""
    return phase.transfer is None or phase.transfer > 0


@given(timelines(ranks=2))
def test_what_if_is_what_a_simulation_says(step: Timeline) -> None:
    """A step whose ranks meet in collectives at the ends of stages."""
    step = Timeline(tuple(filter(is_met, step.phases)), step.clocks)
    if not ideal(step):
        return
    found = what_if(step.run().calls)
    assert found is not None
    assert ideal(step) / 1e9 == pytest.approx(found.ideal_s)
    assert max(step.run().end) / 1e9 == pytest.approx(found.actual_s)
    assert {rank: ideal(step, rank) / 1e9 for rank in (0, 1)} == pytest.approx(found.alone_s)


def test_slowness_that_hides_behind_another_costs_nothing() -> None:
    """One rank slow in reward, the other in forward, and they meet after both: the job is as good as balanced."""
    calls = [
        StageCall(0, 0, "reward", 30),
        StageCall(0, 0, "forward", 20, 10),
        StageCall(0, 1, "reward", 10),
        StageCall(0, 1, "forward", 40, 10),
    ]
    assert WhatIf(5e-8, 5e-8, {0: 5e-8, 1: 5e-8}) == what_if(calls)


def test_one_slow_rank_is_the_whole_slowdown() -> None:
    """Own times 10, 10, 10, 50 then 10 of transfer: 60 against 20 + 10."""
    own = {0: 10, 1: 10, 2: 10, 3: 50}
    calls = [StageCall(0, rank, "backward", 60, 60 - time) for rank, time in own.items()]
    assert WhatIf(6e-8, 3e-8, {0: 3e-8, 1: 3e-8, 2: 3e-8, 3: 6e-8}) == what_if(calls)


def test_what_cannot_be_told_is_not_guessed() -> None:
    """Inseparable collectives, calls that a rank lacks, no time at all."""
    hidden = [StageCall(0, 0, "backward", 9, hidden_ns=None), StageCall(0, 1, "backward", 9)]
    alone = [StageCall(0, 0, "forward", 9), StageCall(0, 1, "forward", 9), StageCall(0, 0, "forward", 9)]
    assert [None, None, None] == [what_if(hidden), what_if(alone), what_if([])]


def test_scores_are_finite() -> None:
    """A first report of a section that took no time."""
    assert math.isclose(1.0, score(0.0, 0.0))
