"""The what-if slowdown against a simulation, and by hand."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import pytest
from hypothesis import given

from tests.tables.made import StageCall, part_of
from tests.timelines import Phase, Timeline, timelines


def ideal_step(calls: Iterable[StageCall]) -> tuple[float, float, dict[int, float]] | None:
    return part_of(calls).what_if


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
    found = ideal_step(step.run().calls)
    assert found is not None
    actual_s, ideal_s, alone_s = found
    assert ideal(step) / 1e9 == pytest.approx(ideal_s)
    assert max(step.run().end) / 1e9 == pytest.approx(actual_s)
    assert {rank: ideal(step, rank) / 1e9 for rank in (0, 1)} == pytest.approx(alone_s)


def test_slowness_that_hides_behind_another_costs_nothing() -> None:
    """One rank slow in reward, the other in forward, and they meet after both: the job is as good as balanced."""
    calls = [
        StageCall(0, 0, "reward", 30),
        StageCall(0, 0, "forward", 20, 10),
        StageCall(0, 1, "reward", 10),
        StageCall(0, 1, "forward", 40, 10),
    ]
    assert (5e-8, 5e-8, {0: 5e-8, 1: 5e-8}) == ideal_step(calls)


def test_one_slow_rank_is_the_whole_slowdown() -> None:
    """Own times 10, 10, 10, 50 then 10 of transfer: 60 against 20 + 10."""
    own = {0: 10, 1: 10, 2: 10, 3: 50}
    calls = [StageCall(0, rank, "backward", 60, 60 - time) for rank, time in own.items()]
    assert (6e-8, 3e-8, {0: 3e-8, 1: 3e-8, 2: 3e-8, 3: 6e-8}) == ideal_step(calls)


def test_what_cannot_be_told_is_not_guessed() -> None:
    """Inseparable collectives, calls that a rank lacks, no time at all."""
    hidden = [StageCall(0, 0, "backward", 9, hidden_ns=None), StageCall(0, 1, "backward", 9)]
    alone = [StageCall(0, 0, "forward", 9), StageCall(0, 1, "forward", 9), StageCall(0, 0, "forward", 9)]
    assert [None, None, None] == [ideal_step(hidden), ideal_step(alone), ideal_step([])]
