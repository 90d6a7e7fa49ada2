"""Waits in collectives against the truth of timelines, and by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.stragglers import Slowest
from tests.tables.made import MetRow, StageCall, Waits, compared, keyed, part_of, waits_of
from tests.timelines import MOST_MEETINGS, MS, Meeting, Meetings, many, meetings, slow_ranks, spent_by


@given(meetings(is_parted=True))
def test_waits_are_true_where_every_collective_was_seen(step: Meetings) -> None:
    """However many there are in a stage, and whoever meets in them; own time and transfers are true with them."""
    played = step.run(MOST_MEETINGS)
    found = waits_of(played.calls)
    assert (played.wait, set()) == (found.ns, found.least)
    ranks = range(step.ranks)
    wait, transfer = (
        [sum(of[rank] for of in truth.values()) for rank in ranks] for truth in (played.wait, played.transfer)
    )
    expected = {rank: (played.end[rank] - wait[rank] - transfer[rank], wait[rank], transfer[rank]) for rank in ranks}
    assert expected == spent_by(played.calls)
    least: Counter[str] = Counter()
    for (stage, _), of_ranks in played.transfer.items():
        least[stage] += min(of_ranks.values())
    assert dict(least) == part_of(played.calls).transfers_ns


@given(meetings(is_parted=False))
def test_waits_are_lower_bounds_where_collectives_were_omitted(step: Meetings) -> None:
    """It says so of these calls, and of no others; their stages have no transfer time, since that may be waiting."""
    played = step.run(2)
    found = waits_of(played.calls)
    cut = {key for key, matched in keyed(played.calls).items() if matched[0].count > 2}
    assert {(key, rank) for key in cut for rank in range(step.ranks)} == found.least
    for key, truth in played.wait.items():
        if key in cut:
            assert [] == [rank for rank, wait in truth.items() if not 0 <= found.ns[key][rank] <= wait]
        else:
            assert truth == found.ns[key]
    stages = {stage for stage, _ in played.wait}
    assert stages - {stage for stage, _ in cut} == set(part_of(played.calls).transfers_ns)


@given(meetings(is_parted=False))
def test_what_all_were_in_is_compared_as_a_whole(step: Meetings) -> None:
    """A wait is no less than what the collectives of a call take beyond those of any other rank, seen or not."""
    played = step.run(1)
    found = waits_of(played.calls)
    for key, matched in keyed(played.calls).items():
        least_ns = min(call.met_ns for call in matched.values())
        for rank, call in matched.items():
            assert call.met_ns - least_ns <= found.ns[key][rank]


@given(meetings(is_parted=True, least=3), st.integers(0, MS))
def test_waits_are_lower_bounds_where_some_ranks_met_without_the_others(step: Meetings, transfer: int) -> None:
    """A slower link of these is no waiting, though in other calls their collectives are among the omitted ones."""
    nothing, everybody = (0,) * step.ranks, frozenset(range(step.ranks))
    stages = [("sync", (Meeting(nothing, frozenset({0, 1}), transfer),))]
    for stage, drawn in step.stages:
        apart = [Meeting(nothing, everybody - one.members, transfer) for one in drawn if one.members < everybody]
        stages.append((stage, (*drawn, *apart)))  # all are in as many
    played = replace(step, stages=tuple(stages)).run(1)
    found = waits_of(played.calls)
    for key, truth in played.wait.items():
        assert [] == [rank for rank, wait in truth.items() if not 0 <= found.ns[key][rank] <= wait]


@pytest.mark.parametrize(("duration", "wait"), [(64, 0), (65, 35), (60, 35)])
def test_times_tell_that_ranks_were_in_other_collectives(duration: int, wait: int) -> None:
    """One spends 65 ns in those behind the first, in which the other did everything; unless that is all in them."""
    slow, fast = (forward(rank, comm, met(30, 30), count=9, omitted=7) for rank, comm in ((0, 95), (1, 60)))
    assert {0: wait, 1: 0} == waits_of([slow, replace(fast, duration_ns=duration)]).ns["forward", 0]


def test_two_collectives_of_one_stage_with_another_rank_last_in_each() -> None:
    """Rows of collectives see 30 + 20 of waiting, the sums of the stage only the difference."""
    rows = {0: met(35, 5), 1: met(5, 25)}
    seen = [
        StageCall(0, 0, "backward", 60, 40, count=2, rows=rows[0]),
        StageCall(0, 1, "backward", 60, 30, count=2, rows=rows[1]),
    ]
    unseen = [replace(call, omitted=2, rows=()) for call in seen]
    assert {0: (20, 30, 10), 1: (30, 20, 10)} == spent_by(seen)
    assert {0: (20, 10, 30), 1: (30, 0, 30)} == spent_by(unseen)


def test_a_stage_whose_collectives_are_hidden_names_nobody() -> None:
    """Raw durations of it hide or invert the straggler, so it is left out."""
    calls = [
        StageCall(0, 0, "backward", 90, hidden_ns=None),
        StageCall(0, 1, "backward", 10, hidden_ns=None),
        StageCall(0, 0, "reward", 10),
        StageCall(0, 1, "reward", 50),
    ]
    assert {"reward": Slowest(1, 5e-8, 1e-8)} == slow_ranks(calls)
    assert {"reward": 0} == part_of(calls).transfers_ns


def test_a_stage_of_one_rank_only_is_no_straggling() -> None:
    """Rank 0 alone writes checkpoints; and a collective of some ranks says nothing of all."""
    calls = [StageCall(0, 0, "checkpoint", 90, 20), StageCall(0, 0, "forward", 9, 5), StageCall(0, 1, "forward", 9, 4)]
    assert {} == slow_ranks(calls)
    assert {"forward": 4} == part_of(calls).transfers_ns


def test_nothing_recorded_names_nothing() -> None:
    """No calls, no collective, no time: no answer and no error."""
    assert ({}, [], [], {}) == (
        slow_ranks([]),
        many([]).stragglers(),
        many([]).slow_communication(),
        spent_by([]),
    )
    instant = [StageCall(0, rank, "forward", 0, 0) for rank in (0, 1)]
    assert ([], []) == (many(instant).stragglers(), many(instant).slow_communication())


def met(*durations: int, first: int = 1, group: str = "world", size: int = 2) -> tuple[MetRow, ...]:
    """Make collectives of one group, one after the other."""
    return tuple(MetRow(group, "all_reduce", size, first + k, duration) for k, duration in enumerate(durations))


def forward(
    rank: int, comm: int, rows: tuple[MetRow, ...], *, count: int = 2, hidden: int | None = 0, omitted: int = 0
) -> StageCall:
    """Make a call of 100 ns."""
    return StageCall(0, rank, "forward", 100, comm, hidden, count=count, omitted=omitted, rows=rows)


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
def test_waits_are_the_larger_of_two_lower_bounds(calls: list[StageCall], expected: dict[int, int]) -> None:
    """Of the collectives that all have, and of the call where all ranks were in the same."""
    found = waits_of(calls)
    assert expected == found.ns["forward", 0]
    assert {rank: {"forward": wait} for rank, wait in expected.items()} == found.by_stage()


def test_a_call_that_a_rank_lacks_says_nothing_of_waits() -> None:
    """But a collective in it does, wherever the others were in it."""
    calls = [forward(0, 20, met(12)), StageCall(0, 1, "reward", 100, 2, count=1, rows=met(2))]
    assert {("forward", 0): {0: 10}, ("reward", 0): {1: 0}} == waits_of(calls).ns


@pytest.mark.parametrize(
    ("calls", "least"),
    [
        ([forward(0, 14, met(12, 2)), forward(1, 14, met(2, 12))], []),
        ([forward(0, 14, met(12), omitted=1), forward(1, 14, met(2, 12))], [0, 1]),
        ([forward(0, 14, met(12), omitted=1), forward(1, 2, met(2), count=1)], [0]),
        ([forward(0, 12, (), count=1, omitted=1), forward(1, 2, (), count=1, omitted=1)], []),  # one, whichever it was
        ([forward(0, 12, met(12, size=2), count=1), forward(1, 2, (), count=1, omitted=1)], []),
        ([forward(0, 12, met(12, size=3), count=1), forward(1, 2, met(2, size=3), count=1)], [0, 1]),
        ([forward(0, 12, met(12), omitted=9), forward(1, 2, met(2), omitted=9, hidden=None)], [0]),
        ([forward(0, 12, met(12, size=1), omitted=9), forward(1, 2, met(2, group="own", size=1), omitted=9)], []),
        ([forward(0, 12, (), omitted=9), forward(1, 2, (), omitted=9)], [0, 1]),
    ],
)
def test_a_wait_is_known_where_all_ranks_of_each_collective_are(calls: list[StageCall], least: list[int]) -> None:
    """Else it is a lower bound; a single collective of all peers is known from its time alone."""
    assert {(("forward", 0), rank) for rank in least} == waits_of(calls).least


def test_some_ranks_of_a_group_tell_the_least_that_they_waited() -> None:
    """The one that came last may be another: then they waited for longer."""
    calls = [forward(rank, 14, met(12 - 3 * rank, 2 + 3 * rank, size=4), count=2 + rank) for rank in (0, 1)]
    key = "forward", 0
    assert Waits({key: {0: 3, 1: 3}}, {(key, 0), (key, 1)}) == waits_of(calls)


def test_a_wait_in_an_idle_call_is_idle_time_already() -> None:
    """And what is under no stage is not."""
    calls = [
        StageCall(0, rank, stage, 20, 12 - 10 * rank, count=1)
        for stage in ("rl.idle queue", "rl.idle data", "rl.train.comm")
        for rank in (0, 1)
    ]
    assert {0: {"rl.train.comm": 10}, 1: {"rl.train.comm": 0}} == waits_of(calls).by_stage()


def test_transfers_are_what_is_no_wait() -> None:
    """Of 14 ns on both ranks 10 are waits, now of the one, now of the other."""
    calls = [forward(0, 14, met(12, 2)), forward(1, 14, met(2, 12))]
    assert {"forward": 4} == part_of(calls).transfers_ns


@given(st.lists(meetings(is_parted=True), min_size=1, max_size=3), st.integers(1, 2))
def test_steps_are_compared_each_by_itself(steps: list[Meetings], parts: int) -> None:
    """However many at once, and with pipeline stages that share collectives; they may share the names of groups."""
    played = [step.run(1).calls for step in steps]
    together = compared(*played, pipeline=parts)
    alone = [compared(calls, pipeline=parts).waits.ns.tolist() for calls in played]
    assert [wait for waits in alone for wait in waits] == together.waits.ns.tolist()
