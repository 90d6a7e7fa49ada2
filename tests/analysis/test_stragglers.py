"""Waits, own times and the straggler, against the truth of timelines whose clocks are skewed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl import vocabulary as v
from otel_rl.analysis.stragglers import (
    SlowComm,
    Slowest,
    SlowRank,
    Straggler,
    costs,
    inside_collectives,
    is_starved,
    is_straggler,
    slow_in,
    slow_rank,
    slowest,
)
from otel_rl.tables.many_steps import slow_in_steps
from otel_rl.tables.peers import between_stages
from tests.tables.made import StageCall, part_of
from tests.timelines import (
    MS,
    Phase,
    Timeline,
    many,
    slow_ranks,
    spent_by,
    timelines,
)

STEPS = 40
RANKS = 4
STAGES = ("data", "reward", "forward", "backward")


@given(timelines(), st.booleans())
def test_activity_is_true_whatever_the_clocks_say(timeline: Timeline, hidden: bool) -> None:
    """Own time, waits and transfers are those of an all-seeing clock, and add up to the step."""
    played = timeline.run(hidden=hidden)
    found = spent_by(played.calls)
    own = [sum(phase.own[rank] for phase in timeline.phases) for rank in range(len(played.end))]
    transfer = sum(phase.transfer or 0 for phase in timeline.phases)
    assert {rank: (own[rank], played.wait[rank], transfer) for rank in range(len(played.end))} == found


@given(timelines())
def test_slow_ranks_are_those_of_a_brute_force_search(timeline: Timeline) -> None:
    """Of every stage the longest own time against the median of the others: 1.2 times, 2 % of the step."""
    count = len(timeline.clocks)
    total: dict[str, list[int]] = {}
    for phase in timeline.phases:
        sums = total.setdefault(phase.stage, [0] * count)
        total[phase.stage] = [old + new for old, new in zip(sums, phase.own, strict=True)]
    played = timeline.run()
    expected = set()
    limit_s = 0.02 * max(played.end) / 1e9
    for stage, own_ns in total.items():
        own = [time / 1e9 for time in own_ns]
        rank = own.index(max(own))
        others = median(own[:rank] + own[rank + 1 :])
        if others > 0 and own[rank] >= 1.2 * others and own[rank] - others >= limit_s:
            expected.add((stage, rank))
    found = slow_ranks(played.calls)
    assert expected == {(stage, slow.rank) for stage, slow in found.items()}
    assert sorted((slow.excess_s for slow in found.values()), reverse=True) == [
        slow.excess_s for slow in found.values()
    ]


def steps(slow: tuple[int, str] | None, *, transfer: int = 5 * MS, noise: int = MS) -> list[StageCall]:
    """Play 40 steps of four noisy ranks with skewed clocks, one of them 100 ms slower in one stage."""
    random = Random(7)
    calls: list[StageCall] = []
    for step in range(STEPS):
        phases = [
            Phase(
                stage,
                tuple(
                    30 * MS + random.randrange(noise) + (100 * MS if (rank, stage) == slow else 0)
                    for rank in range(RANKS)
                ),
                transfer if stage in {"forward", "backward"} else None,
            )
            for stage in STAGES
        ]
        calls += Timeline(tuple(phases), (250 * MS, -80 * MS, 3 * MS, 0)).run(step, hidden=True).calls
    return calls


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_slowed_by_100_ms_is_named_in_every_step(stage: str) -> None:
    """With the right stage and a median cost within a hundredth, wherever it is slow."""
    calls = steps((2, stage))
    named = [
        next((slow.rank, stage) for stage, slow in found.items())
        for step in range(STEPS)
        if (found := slow_ranks(call for call in calls if call.step == step))
    ]
    assert [(2, stage)] * STEPS == named
    [straggler] = many(calls).stragglers()
    assert (2, stage, STEPS, STEPS) == (straggler.rank, straggler.stage, straggler.slow_steps, straggler.steps)
    assert pytest.approx(0.1, rel=0.01) == straggler.cost_s


def test_slow_communication_blames_no_rank() -> None:
    """Collectives that take 400 ms on every rank are named with their stages; nobody came late."""
    calls = steps(None, transfer=400 * MS)
    assert [] == many(calls).stragglers()
    assert [] == [slow for step in range(STEPS) for slow in slow_ranks(call for call in calls if call.step == step)]
    found = many(calls).slow_communication()
    assert {"forward", "backward"} == {slow.stage for slow in found}
    assert [pytest.approx(0.4)] * 2 == [slow.transfer_s for slow in found]


def test_a_straggler_is_no_slow_communication() -> None:
    """The others wait 100 ms inside the collective; the rank they wait for does not."""
    assert [] == many(steps((1, "backward"))).slow_communication()


def test_clean_steps_name_nobody() -> None:
    """Noise below a hundredth of the step is no straggler."""
    assert [] == many(steps(None)).stragglers()


def test_two_ranks_that_are_slow_alike_are_both_named() -> None:
    """A rank is never named alone because its number is lower."""
    own = {0: 10, 1: 40, 2: 10, 3: 39, 4: 10}
    calls = [StageCall(0, rank, "reward", duration * MS) for rank, duration in own.items()]
    assert [(1, 1), (3, 1)] == [(one.rank, one.slow_steps) for one in many(calls).stragglers()]


def test_slow_once_is_no_straggler() -> None:
    """In 1 of 3 steps: named in that step, not in the run; in half of the steps it would be."""
    calls = [StageCall(step, rank, "reward", 50 if step == rank == 1 else 10) for step in range(3) for rank in (0, 1)]
    assert [0, 1, 0] == [len(slow_ranks(call for call in calls if call.step == step)) for step in range(3)]
    assert [] == many(calls).stragglers()
    assert [Straggler(1, "reward", 2e-8, 1, 2, 3e-8, 1e-8, 2)] == many(
        call for call in calls if call.step < 2
    ).stragglers()


def at_times(own: Callable[[int, int], int]) -> list[StageCall]:
    """Make 12 steps of three ranks in which each rewards for so long, by step and rank, ms."""
    return [StageCall(step, rank, "reward", own(step, rank) * MS) for step in range(12) for rank in range(3)]


def test_a_rank_that_is_slow_at_times_costs_what_it_does_in_the_mean() -> None:
    """In each third step by 90 ms: 30 ms per step, over what it and the others took then."""
    calls = at_times(lambda step, rank: 100 if rank == 1 and step % 3 == 0 else 10)
    [found] = many(calls).stragglers()
    assert (1, "reward", 4, 12) == (found.rank, found.stage, found.slow_steps, found.steps)
    assert (pytest.approx(0.03), 0.1, 0.01) == (found.cost_s, found.own_s, found.others_s)


@pytest.mark.parametrize(
    "own",
    [
        lambda step, rank: 100 if rank == 1 and step in (3, 6) else 10,
        lambda step, rank: 100 if rank == step % 3 else 10,
        lambda step, rank: {0: 100, 1: 10}.get(step % 3, 10) if rank == 1 else {1: 100}.get(step % 3, 10),
        lambda step, rank: 13 if rank == 1 and step % 3 == 0 else 10,
    ],
    ids=["twice", "in turn", "two in turn", "too little"],
)
def test_slow_by_turns_or_by_chance_is_no_straggler(own: Callable[[int, int], int]) -> None:
    """Not in fewer than three steps, nor where others are as often, nor for less than 2 % of the mean step."""
    calls = at_times(own)
    calls += [StageCall(call.step, call.rank, "sample", 100 * MS) for call in calls]
    assert [] == many(calls).stragglers()


def test_a_rank_that_is_as_slow_as_one_that_is_slow_at_times() -> None:
    """By its own time alone it would not be slow; it is named with the other, and costs what it takes more."""
    own_us = {0: 10_000, 1: 10_000, 2: 11_700, 3: 12_200}
    calls = [
        StageCall(step, rank, "reward", (own if step % 3 == 0 else 10_000) * 1_000)
        for step in range(12)
        for rank, own in own_us.items()
    ]
    costs_s = {3: pytest.approx(2.2e-3 / 3), 2: pytest.approx(1.7e-3 / 3)}
    assert costs_s == {one.rank: one.cost_s for one in many(calls).stragglers()}


def test_a_stage_of_some_ranks_alone_is_no_straggling() -> None:
    """All that have it take as long; the third does not have it."""
    calls = at_times(lambda step, rank: (0, 34, 35)[rank])
    assert ([], {}) == (
        many(calls).stragglers(),
        costs(part_of(call for call in calls if call.step == 0).own_s, 40 * MS),
    )


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 10, 11, 12, 13, 39, 40]), min_size=2, max_size=5), min_size=1, max_size=12)
)
def test_whatever_ranks_take_somebody_or_nobody_is_named(own_ns: list[list[int]]) -> None:
    """Ranks that are not there in every step, and times of nothing, among them."""
    calls = [StageCall(step, rank, "reward", own) for step, row in enumerate(own_ns) for rank, own in enumerate(row)]
    for found in many(calls).stragglers():
        assert (True, True) == (found.others_s > 0, found.cost_s > 0)


def test_ranks_that_are_slow_alike_are_held_against_the_others() -> None:
    """Two of three: as fast as the third they would save the whole difference."""
    calls = at_times(lambda step, rank: 10 if rank == 0 else 40)
    assert [(1, pytest.approx(0.03)), (2, pytest.approx(0.03))] == [
        (one.rank, one.cost_s) for one in many(calls).stragglers()
    ]


def test_share_of_slow_communication() -> None:
    """Transfer over the step of the slowest rank; steps without the stage count as none of it."""
    calls = [StageCall(step, rank, "sync", 100, 80) for step in range(3) for rank in (0, 1)]
    assert [SlowComm("sync", 8e-8, 0.8, 0.0)] == many(calls).slow_communication()
    limits = [[StageCall(0, rank, "sync", 100, comm) for rank in (0, 1)] for comm in (30, 29)]
    assert [1, 0] == [len(many(limit).slow_communication()) for limit in limits]
    others = [StageCall(step, rank, "forward", 100) for step in range(3, 9) for rank in (0, 1)]
    assert [] == many(calls + others).slow_communication()


def test_what_may_be_waiting_is_no_slow_communication() -> None:
    """A step in which it may be counts as one without: one of three does not hide the others, two do."""
    steps = [[StageCall(step, rank, "sync", 100, 80, count=3) for rank in (0, 1)] for step in range(3)]
    for unknown, expected in ((0, [0.8]), (1, [0.8]), (2, [])):
        steps[unknown - 1][0] = replace(steps[unknown - 1][0], omitted=2 if unknown else 0)
        assert expected == [one.share for one in many(call for calls in steps for call in calls).slow_communication()]


def test_what_each_slow_rank_costs() -> None:
    """Also of those that are as slow: beyond the median of all others; by the step, which may be longer than stages."""
    own = {0: 10, 1: 40, 2: 10, 3: 39, 4: 10}
    calls = [StageCall(0, rank, "reward", duration * MS) for rank, duration in own.items()]
    assert {(1, "reward"): pytest.approx(0.03), (3, "reward"): pytest.approx(0.029)} == costs(
        part_of(calls).own_s, 40 * MS
    )
    assert {} == costs(part_of(calls).own_s, 1600 * MS)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=5))
def test_time_under_no_stage_is_own_where_others_wait_for_it(other_ms: list[int]) -> None:
    """They meet behind it, so who came earlier waits for the last one; where nobody is seen to, it may be waiting."""
    other = np.array(other_ms)
    first = np.zeros(len(other), np.int64)  # a step, and one in which nobody waits
    found = between_stages(np.repeat([0, 1], len(other)), np.tile(other, 2), np.append(other.max() - other, first))
    assert [*other_ms, *[min(other_ms)] * len(other)] == found.tolist()


def test_a_rank_that_is_slow_under_no_stage_costs_what_it_is_late() -> None:
    """As one that is slow in a stage does."""
    calls = [StageCall(0, rank, "forward", 10 * MS) for rank in range(3)]
    between_s = {0: 0.001, 1: 0.031, 2: 0.001}
    assert {(1, "rl.other"): pytest.approx(0.03)} == costs({**part_of(calls).own_s, "rl.other": between_s}, 41 * MS)


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


def test_a_rank_that_is_slow_in_everything_is_summed_up() -> None:
    """Over all stages; what it does faster makes up for nothing."""
    own_s = {"sample": {0: 4.0, 1: 8.0}, "forward": {0: 3.0, 1: 6.0}, "log": {0: 1.0, 1: 0.5}}
    assert SlowRank(1, ("sample", "forward"), True, 14.5, 8.0, 7.0) == slow_rank(1, own_s, ["sample"])


@pytest.mark.parametrize(
    "own_s",
    [
        {"sample": {0: 8.0, 1: 16.0}, "forward": {0: 2.0, 1: 2.0}},
        {"sample": {0: 4.0, 1: 4.0}, "forward": {0: 3.0, 1: 6.0}},
        {"sample": {0: 4.0, 1: 8.0}},
    ],
    ids=["the longest stage", "a short one", "all there is"],
)
def test_a_rank_that_is_slow_in_a_stage_is_not_slow_in_everything(own_s: dict[str, dict[int, float]]) -> None:
    """However long the stage."""
    name, slow = next((name, own) for name, own in own_s.items() if own[1] > own[0])
    assert SlowRank(1, (name,), False, slow[1], slow[0], slow[1] - slow[0]) == slow_rank(1, own_s, [name])


def test_slow_ranks_are_compared_with_those_that_are_not() -> None:
    """Two of four."""
    own_s = {stage: {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.1} for stage in ("sample", "forward")}
    assert [(True, 2.0), (True, 2.0)] == [
        (found.is_everywhere, found.others_s) for found in (slow_rank(rank, own_s, ["sample"]) for rank in (2, 3))
    ]


def test_each_slow_rank_of_a_step_counts() -> None:
    """Not only the slowest: two that sleep are slower in turn, and never by less than 5 %."""
    own = [(10, 14 + 2 * (step % 2), 10, 16 - 2 * (step % 2)) for step in range(12)]
    calls = [
        StageCall(step, rank, "reward", ms * MS) for step, times in enumerate(own) for rank, ms in enumerate(times)
    ]
    assert [1, 3] == sorted(one.rank for one in many(calls).stragglers())


def test_what_a_slow_rank_costs_inside_collectives() -> None:
    """Half of the time, if it is half as fast; nothing if it is not slower."""
    assert [5.0, 0.0, 0.0] == [inside_collectives(10.0, ratio) for ratio in (2.0, 1.0, 0.5)]


def test_a_rank_is_starved_if_its_peers_get_more_of_a_core() -> None:
    """Nobody is where it is not known."""
    cases = [(0.5, 0.61), (0.5, 0.59), (None, 0.5), (0.5, None)]
    assert [True, False, False, False] == [is_starved(*case) for case in cases]


def slow(stage: str, steps: list[list[float]]) -> list[list[int]]:
    """Return the ranks that are slow in each step of 1 s; NaN is a rank that has not the stage."""
    is_slow, _ = slow_in_steps(stage, np.array(steps).T, np.full(len(steps), 10**9))
    return [np.flatnonzero(one).tolist() for one in is_slow.T]


def slow_in_one(own_s: dict[int, float]) -> list[int]:
    """Return the same of one step, rank by rank."""
    found = slow_in({v.REWARD: own_s}, 10**9).get(v.REWARD)
    if found is None:
        return []
    ranks = [Slowest(rank, own_s[rank], median([own_s[one] for one in own_s if one != rank])) for rank in own_s]
    return [one.rank for one in ranks if one.rank in found.tied or (is_straggler(one) and one.excess_s >= 0.02)]


@given(
    st.lists(
        st.lists(st.sampled_from([math.nan, 0.0, 0.01, 0.1, 0.11, 0.12, 0.39, 0.4]), min_size=5, max_size=5), min_size=1
    )
)
def test_many_steps_at_once_have_the_slow_ranks_of_each(steps: list[list[float]]) -> None:
    """The slowest rank, those as slow, and others that are slow; some ranks have no time in some steps."""
    expected = [slow_in_one({rank: one for rank, one in enumerate(step) if not math.isnan(one)}) for step in steps]
    assert expected == slow(v.REWARD, steps)


def test_a_rank_that_writes_checkpoints_for_all_is_no_straggler() -> None:
    """Where each rank writes its part, one that takes longer is slow."""
    for stage in (v.CHECKPOINT, v.ACTION):
        assert [[], [0]] == slow(stage, [[2.0, 0.01], [2.0, 1.0]])
    assert [[0]] == slow(v.REWARD, [[2.0, 0.01]])
