"""Waits, own times and the straggler, against the truth of timelines whose clocks are skewed."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.balance import Slowest
from otel_rl.analysis.many_steps import SlowComm, Straggler, slow_communication, stragglers
from otel_rl.analysis.stragglers import (
    Activity,
    Met,
    Slow,
    StageCall,
    Waits,
    activity,
    call_waits,
    charges,
    costs,
    is_symmetric,
    slow_ranks,
    tally,
    transfers,
    waits,
    waits_in,
)
from tests.timelines import MS, Phase, Timeline, timelines

STEPS = 40
RANKS = 4
STAGES = ("data", "reward", "forward", "backward")


@given(timelines(), st.booleans())
def test_activity_is_true_whatever_the_clocks_say(timeline: Timeline, hidden: bool) -> None:
    """Own time, waits and transfers are those of an all-seeing clock, and add up to the step."""
    played = timeline.run(hidden=hidden)
    found = activity(played.calls, dict(enumerate(played.end)))
    own = [sum(phase.own[rank] for phase in timeline.phases) for rank in range(len(played.end))]
    transfer = sum(phase.transfer or 0 for phase in timeline.phases)
    assert {rank: Activity(own[rank], played.wait[rank], transfer, 0, 0) for rank in range(len(played.end))} == found


@given(timelines())
def test_the_rank_charged_is_the_one_that_came_last(timeline: Timeline) -> None:
    """Every wait of a collective is charged to those whom it waited for, equally where they came together."""
    for phase in timeline.phases:
        late = max(phase.own)
        duration = {rank: late - own + (phase.transfer or 0) for rank, own in enumerate(phase.own)}
        last = [rank for rank, own in enumerate(phase.own) if own == late]
        total = sum(late - own for own in phase.own)
        assert {rank: late - own for rank, own in enumerate(phase.own)} == waits(duration)
        assert ({rank: total / len(last) for rank in last} if total else {}) == charges(duration)


@given(timelines())
def test_waits_of_collectives_add_up(timeline: Timeline) -> None:
    """Each rank's waits are true, the sum of what ranks caused is the sum of what they waited, clocks or not."""
    met = [phase for phase in timeline.phases if phase.transfer is not None]
    found = tally({rank: max(phase.own) - own for rank, own in enumerate(phase.own)} for phase in met)
    truth = Timeline(tuple(met), timeline.clocks).run().wait if met else []
    assert dict(enumerate(truth)) == {rank: one.waited_ns for rank, one in found.items()}
    assert sum(truth) == pytest.approx(sum(one.caused_ns for one in found.values()))


def test_ranks_that_are_last_together_share_the_charge() -> None:
    """4 of waiting, for two of them; nobody is charged for nothing."""
    assert {0: 2.0, 1: 2.0} == charges({0: 5, 1: 5, 2: 9})
    assert {} == charges({0: 5, 1: 5})


def test_two_collectives_of_one_stage_with_another_rank_last_in_each() -> None:
    """Rows of collectives see 30 + 20 of waiting, the sums of the stage only the difference."""
    calls = [StageCall(0, 0, "backward", 60, 40), StageCall(0, 1, "backward", 60, 30)]
    found = tally([{0: 35, 1: 5}, {0: 5, 1: 25}])
    assert {0: Waits(30, 20.0), 1: Waits(20, 30.0)} == found
    waited = {rank: one.waited_ns for rank, one in found.items()}
    assert {0: Activity(20, 30, 10, 0, 0), 1: Activity(30, 20, 10, 0, 0)} == activity(calls, {0: 60, 1: 60}, waited)
    assert {0: Activity(20, 10, 30, 0, 0), 1: Activity(30, 0, 30, 0, 0)} == activity(calls, {0: 60, 1: 60})


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
    assert expected == {(slow.stage, slow.rank.rank) for slow in found}
    assert sorted((slow.rank.excess_s for slow in found), reverse=True) == [slow.rank.excess_s for slow in found]


def steps(slow: tuple[int, str] | None, *, transfer: int = 5 * MS, noise: int = MS) -> list[StageCall[int]]:
    """Play 40 steps of four noisy ranks with skewed clocks, one of them 100 ms slower in one stage."""
    random = Random(7)
    calls: list[StageCall[int]] = []
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
        (found[0].rank.rank, found[0].stage)
        for step in range(STEPS)
        if (found := slow_ranks(call for call in calls if call.step == step))
    ]
    assert [(2, stage)] * STEPS == named
    [straggler] = stragglers(calls)
    assert (2, stage, STEPS, STEPS) == (straggler.rank, straggler.stage, straggler.slow_steps, straggler.steps)
    assert pytest.approx(0.1, rel=0.01) == straggler.cost_s


def test_slow_communication_blames_no_rank() -> None:
    """Collectives that take 400 ms on every rank are named with their stages; nobody came late."""
    calls = steps(None, transfer=400 * MS)
    assert [] == stragglers(calls)
    assert [] == [slow for step in range(STEPS) for slow in slow_ranks(call for call in calls if call.step == step)]
    found = slow_communication(calls)
    assert {"forward", "backward"} == {slow.stage for slow in found}
    assert [pytest.approx(0.4)] * 2 == [slow.transfer_s for slow in found]


def test_a_straggler_is_no_slow_communication() -> None:
    """The others wait 100 ms inside the collective; the rank they wait for does not."""
    assert [] == slow_communication(steps((1, "backward")))


def test_clean_steps_name_nobody() -> None:
    """Noise below a hundredth of the step is no straggler."""
    assert [] == stragglers(steps(None))


def test_a_stage_whose_collectives_are_hidden_names_nobody() -> None:
    """Raw durations of it hide or invert the straggler, so it is left out, and its time is inseparable."""
    calls = [
        StageCall(0, 0, "backward", 90, hidden_ns=None),
        StageCall(0, 1, "backward", 10, hidden_ns=None),
        StageCall(0, 0, "reward", 10),
        StageCall(0, 1, "reward", 50),
    ]
    assert [Slow("reward", Slowest(1, 5e-8, 1e-8))] == slow_ranks(calls)
    assert {"reward": 0} == transfers(calls)
    assert {0: Activity(10, 0, 0, 90, 5), 1: Activity(50, 0, 0, 10, 45)} == activity(calls, {0: 105, 1: 105})


def test_two_ranks_that_are_slow_alike_are_both_named() -> None:
    """A rank is never named alone because its number is lower."""
    own = {0: 10, 1: 40, 2: 10, 3: 39, 4: 10}
    calls = [StageCall(0, rank, "reward", duration * MS) for rank, duration in own.items()]
    assert [(1, 1), (3, 1)] == [(one.rank, one.slow_steps) for one in stragglers(calls)]


def test_a_stage_of_one_rank_only_is_no_straggling() -> None:
    """Rank 0 alone writes checkpoints; and a collective of some ranks says nothing of all."""
    calls = [StageCall(0, 0, "checkpoint", 90, 20), StageCall(0, 0, "forward", 9, 5), StageCall(0, 1, "forward", 9, 4)]
    assert [] == slow_ranks(calls)
    assert {"forward": 4} == transfers(calls)


def test_slow_now_and_then_is_no_straggler() -> None:
    """In 1 of 3 steps: named in that step, not in the run; in half of the steps it would be."""
    calls = [StageCall(step, rank, "reward", 50 if step == rank == 1 else 10) for step in range(3) for rank in (0, 1)]
    assert [0, 1, 0] == [len(slow_ranks(call for call in calls if call.step == step)) for step in range(3)]
    assert [] == stragglers(calls)
    assert [Straggler(1, "reward", 2e-8, 1, 2, 3e-8, 1e-8)] == stragglers(call for call in calls if call.step < 2)


def test_nothing_recorded_names_nothing() -> None:
    """No calls, no collective, no time: no answer and no error."""
    assert ([], [], [], {}, {}, {}) == (
        slow_ranks([]),
        stragglers([]),
        slow_communication([]),
        waits({}),
        charges({}),
        activity([], {}),
    )
    instant = [StageCall(0, rank, "forward", 0, 0) for rank in (0, 1)]
    assert ([], []) == (stragglers(instant), slow_communication(instant))


def test_share_of_slow_communication() -> None:
    """Transfer over the step of the slowest rank; steps without the stage count as none of it."""
    calls = [StageCall(step, rank, "sync", 100, 80) for step in range(3) for rank in (0, 1)]
    assert [SlowComm("sync", 8e-8, 0.8)] == slow_communication(calls)
    limits = [[StageCall(0, rank, "sync", 100, comm) for rank in (0, 1)] for comm in (30, 29)]
    assert [1, 0] == [len(slow_communication(limit)) for limit in limits]
    others = [StageCall(step, rank, "forward", 100) for step in range(3, 9) for rank in (0, 1)]
    assert [] == slow_communication(calls + others)


@pytest.mark.parametrize(
    "name",
    ["all_gather_single", "gloo:all_reduce", "c10d::allreduce_", "_reduce_scatter_base", "nccl:all_to_all", "barrier"],
)
def test_operations_that_all_ranks_leave_together(name: str) -> None:
    """By the names of torch, of its backends and of the flight recorder."""
    assert is_symmetric(name)


@pytest.mark.parametrize("name", ["broadcast", "nccl:send", "reduce", "gather", "gather_object", "my_exchange", ""])
def test_operations_that_say_nothing_of_waits(name: str) -> None:
    """A root leaves early, and what is unknown is not guessed."""
    assert not is_symmetric(name)


def met(*durations: int, first: int = 1, group: str = "world", size: int = 2) -> tuple[Met, ...]:
    """Make collectives of one group, one after the other."""
    return tuple(Met(group, "all_reduce", size, first + k, duration) for k, duration in enumerate(durations))


def forward(rank: int, comm: int, rows: tuple[Met, ...], *, count: int = 2, hidden: int | None = 0) -> StageCall[int]:
    """Make a call of 100 ns."""
    return StageCall(0, rank, "forward", 100, comm, hidden, count=count, rows=rows)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([forward(0, 14, met(12, 2)), forward(1, 14, met(2, 12))], {0: 10, 1: 10}),
        ([forward(0, 30, met(12)), forward(1, 14, met(2))], {0: 16, 1: 0}),  # others were no spans
        ([forward(0, 14, met(12, 2)), forward(1, 14, ())], {0: 0, 1: 0}),
        ([forward(0, 30, met(12)), forward(1, 14, ())], {0: 16, 1: 0}),
        ([forward(0, 30, met(12), count=3), forward(1, 14, met(2))], {0: 10, 1: 0}),
        ([forward(0, 30, met(12, group="a")), forward(1, 14, met(2, group="b"))], {0: 0, 1: 0}),
        ([forward(rank, 30 - rank, met(12 - rank)) for rank in range(3)], {0: 0, 1: 0, 2: 0}),  # one name, two groups
        ([forward(0, 30, met(12, first=0)), forward(1, 30, met(2, first=0))], {0: 10, 1: 0}),
        ([forward(0, 30, met(12, 9)), forward(1, 30, met(2) + met(3))], {0: 0, 1: 0}),  # seen twice
        ([forward(0, 5, met(12, 2)), forward(1, 5, met(2, 12))], {0: 5, 1: 5}),
        ([forward(0, 14, met(12, 2)), forward(1, 14, met(2, 12), hidden=None)], {0: 10}),
        ([forward(0, 14, ()), forward(0, 14, ()), forward(1, 4, ())], {0: 10, 1: 0}),
    ],
)
def test_waits_are_the_larger_of_two_lower_bounds(calls: list[StageCall[int]], expected: dict[int, int]) -> None:
    """Of the collectives that all have, and of the call where all ranks were in the same."""
    found = call_waits(calls)
    assert expected == found["forward", 0]
    assert {rank: {"forward": wait} for rank, wait in expected.items()} == waits_in(found)


def test_a_call_that_a_rank_lacks_says_nothing_of_waits() -> None:
    """But a collective in it does, wherever the others were in it."""
    calls = [forward(0, 20, met(12)), StageCall(0, 1, "reward", 100, 2, count=1, rows=met(2))]
    assert {("forward", 0): {0: 10}, ("reward", 0): {1: 0}} == call_waits(calls)


def test_some_ranks_of_a_group_tell_the_least_that_they_waited() -> None:
    """The one that came last may be another: then they waited for longer."""
    calls = [forward(rank, 14, met(12 - 3 * rank, 2 + 3 * rank, size=4), count=2 + rank) for rank in (0, 1)]
    assert {("forward", 0): {0: 3, 1: 3}} == call_waits(calls)


def test_a_wait_in_an_idle_call_is_idle_time_already() -> None:
    """And what is under no stage is not."""
    calls = [
        StageCall(0, rank, stage, 20, 12 - 10 * rank, count=1)
        for stage in ("rl.idle queue", "rl.idle data", "rl.train.comm")
        for rank in (0, 1)
    ]
    assert {0: {"rl.train.comm": 10}, 1: {"rl.train.comm": 0}} == waits_in(call_waits(calls))


def test_transfers_are_what_is_no_wait() -> None:
    """Of 14 ns on both ranks 10 are waits, now of the one, now of the other; what was asked is not asked again."""
    calls = [forward(0, 14, met(12, 2)), forward(1, 14, met(2, 12))]
    assert {"forward": 4} == transfers(calls)
    assert {"forward": 6} == transfers(calls, {("forward", 0): {0: 8, 1: 8}})


def test_what_each_slow_rank_costs() -> None:
    """Also of those that are as slow: beyond the median of all others; by the step, which may be longer than stages."""
    own = {0: 10, 1: 40, 2: 10, 3: 39, 4: 10}
    calls = [StageCall(0, rank, "reward", duration * MS) for rank, duration in own.items()]
    assert {(1, "reward"): pytest.approx(0.03), (3, "reward"): pytest.approx(0.029)} == costs(calls, 40 * MS)
    assert {} == costs(calls, 1600 * MS)
