"""Comparing ranks while they run: known waits become exactly these spans and numbers, whatever the clocks say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.sidecar.compare import align, rank_step
from tests.peers import ALIVE, BEGIN_NS, MS, Did, Met, Peer
from tests.watched import DEAD, FakeClock, Watched, clock, compared, uneven, waited

__all__ = ["clock"]


def test_waits_become_spans_and_numbers(tmp_path: Path, clock: FakeClock) -> None:
    """Whole trees: parents, ids, times by the waiter's own clock, attributes, resources."""
    ranks = [Peer(tmp_path, rank, clock_ms=rank * 7_000) for rank in range(2)]
    made = [rank.step(1, uneven(rank.rank)) for rank in ranks]
    watched = Watched(tmp_path, clock)
    assert [] == watched.look(), "a step was compared whose spans may still come"
    watched.look(rank_step.LAST_SPANS_S)
    trace = ids.trace_id("a" * 16, "train", 1).to_bytes(16, "big")
    expected = []
    for rank, place, wait_ms, sequence in ((0, 0, 20, 1), (1, 3, 2, 3)):
        collective = made[rank][place]
        assert collective.name == v.COMM
        own = collective.span_id.to_bytes(8, "big")
        expected.append({
            "name": v.IDLE,
            "trace": trace,
            "id": ids.idle_id(trace, own).to_bytes(8, "big"),
            "parent": collective.parent_id.to_bytes(8, "big"),
            "times": (collective.start_ns, collective.start_ns + wait_ms * MS),
            "attributes": {
                v.IDLE_REASON: "skew", v.COMM_OPERATION: "all_reduce", v.COMM_GROUP: "default_pg 0",
                v.COMM_SEQUENCE: sequence, v.SKEW_RANK: 1 - rank,
            },
            "resource": ranks[rank].resource,
        })  # fmt: skip
    found = [
        {
            "name": span.name, "trace": span.trace_id, "id": span.span_id, "parent": span.parent_id,
            "times": (span.start_ns, span.end_ns), "attributes": span.attributes, "resource": dict(span.resource),
        }
        for span in watched.spans
    ]  # fmt: skip
    assert expected == found
    run = {v.SCOPE_KEY: "run"}
    assert [(0, run, 0.02), (1, run, 0.002)] == watched.numbers(v.SKEW_WAIT)
    assert [(1, {v.STAGE: v.REWARD, **run}, 0.02)] == watched.numbers(v.STRAGGLER_COST)
    of_step = {v.BUBBLE_DENOMINATOR: "step", v.IDLE_REASON: "skew", **run}
    step_ms = (10 + 25 + 8 + 2.5, 30 + 5 + 8 + 4.5)
    assert [(0, of_step, round(20 / step_ms[0], 9)), (1, of_step, round(2 / step_ms[1], 9))] == watched.numbers(
        v.BUBBLE_RATIO
    )
    ends = {rank.rank: rank.now_ns for rank in ranks}
    assert {(rank, end) for rank, end in ends.items()} == {(p.resource[v.RANK], p.time_ns) for p in watched.points}
    begun = {(p.resource[v.RANK], p.start_ns) for p in watched.points if p.name == v.SKEW_WAIT}
    assert {(0, BEGIN_NS), (1, BEGIN_NS + 7_000 * MS)} == begun
    assert {"derived": 1} == watched.counts


@pytest.mark.parametrize("clock_ms", [-40_000_000, -15, 15, 86_400_000])
def test_clocks_of_ranks_change_nothing(tmp_path: Path, clock: FakeClock, clock_ms: int) -> None:
    """But the times of what is a rank's own."""
    found = []
    for shift in (0, clock_ms):
        directory = tmp_path / str(shift)
        ranks = [Peer(directory, rank, clock_ms=rank * shift) for rank in range(2)]
        for number in (1, 2, 3):
            for rank in ranks:
                rank.step(number, uneven(rank.rank, 10 * number))
        watched = compared(directory, clock)
        numbers = [watched.numbers(name) for name in (v.SKEW_WAIT, v.STRAGGLER_COST, v.BUBBLE_RATIO)]
        found.append((waited(watched), numbers, [span.span_id for span in watched.spans], watched.counts))
    assert found[0] == found[1]
    assert [(0, 10, 20), (1, 12, 2), (0, 20, 20), (1, 22, 2), (0, 30, 20), (1, 32, 2)] == found[0][0]
    assert {"derived": 3} == found[0][3]


def test_what_cannot_be_compared_is_no_wait(tmp_path: Path, clock: FakeClock) -> None:
    """Waits for asynchronous collectives, rooted ones, those without a number, launches, those below 1 ms."""
    for rank in range(2):
        ms = 9 - 8 * rank
        met = [
            Met(ms, 1, more={v.COMM_ASYNC: True}),
            Met(ms, 2, "broadcast"),
            Met(ms),
            Met(ms, 4, more={v.CLOCK: "host"}),
            Met(1.9 - 0.95 * rank, 5),
            Met(ms, 6 + rank),
            Met(ms, 8, size=3),
            *[Met(ms, 9)] * 2,
        ]
        waits = [Did("chat", 50 + 100 * rank, more={v.SUBMISSION: "bulk"}), Did(v.IDLE, 50 + 100 * rank)]
        Peer(tmp_path, rank).step(1, [Did(v.FORWARD, 1, met), *waits])
    watched = compared(tmp_path, clock)
    assert ([], [], {"derived": 1}) == (waited(watched), watched.numbers(v.STRAGGLER_COST), watched.counts)


def test_what_is_waited_inside_idle_is_idle_already(tmp_path: Path, clock: FakeClock) -> None:
    """Wherever it lies: the rank has said so itself."""
    for rank in range(2):
        idle = Did(v.IDLE, 1, [Met(40 - 30 * rank, 1)])
        Peer(tmp_path, rank).step(1, [Did(v.TRAIN, 10, inside=[idle]), Did(v.IDLE, 1, [Met(40 - 30 * rank, 2)])])
    watched = compared(tmp_path, clock)
    assert ([], [(0, 0.0), (1, 0.0)]) == (
        waited(watched),
        [(rank, wait_s) for rank, _, wait_s in watched.numbers(v.SKEW_WAIT)],
    )


def test_what_is_waited_in_the_background_is_no_wait(tmp_path: Path, clock: FakeClock) -> None:
    """Ranks that write a checkpoint beside their steps hold nobody up; nor is one slow there."""
    for rank in range(2):
        met = [Met(80 - 79 * rank, 1)]
        staging = Did(v.CHECKPOINT_STAGING, 10)
        saving = Did(v.CHECKPOINT, 1 + 79 * rank, met, {v.CHECKPOINT_ASYNC: True}, inside=[staging])
        Peer(tmp_path, rank).step(1, [saving, Did(v.TRAIN, 10, [Met(1, 2)])])
    watched = compared(tmp_path, clock)
    assert ([], [(0, 0.0), (1, 0.0)], []) == (
        waited(watched),
        [(rank, wait_s) for rank, _, wait_s in watched.numbers(v.SKEW_WAIT)],
        watched.numbers(v.STRAGGLER_COST),
    )


def test_a_row_that_a_rank_lacks_blames_nobody(tmp_path: Path, clock: FakeClock) -> None:
    """The rank that waited least has shorter ones than those that are spans: without its row the least is not known."""
    for rank, times in enumerate(((9, 9), (3, 5), (None, 1))):
        met = [Met(ms, number, size=3) for number, ms in enumerate(times, 1) if ms is not None]
        Peer(tmp_path, rank, 3).step(1, [Did(v.FORWARD, 1, met)])
    assert [(0, 2, 8), (1, 2, 4)] == waited(compared(tmp_path, clock))


def test_ddp_is_matched_by_order(tmp_path: Path, clock: FakeClock) -> None:
    """Its waits have no number; where one rank has fewer of them the k-th is not the k-th."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for number, counts in ((1, (2, 2)), (2, (2, 1))):
        for rank in ranks:
            ddp = {v.COMM_ASYNC: True}
            met = [Met(5 + rank.rank * (2 - 4 * k), operation=v.DDP_ALL_REDUCE, more=ddp) for k in range(2)]
            rank.step(number, [Did(v.BACKWARD, 4, met[: counts[rank.rank]])])
    watched = compared(tmp_path, clock)
    assert [(0, 0, 2), (1, 0, 2)] == waited(watched)
    assert [{v.SKEW_RANK: 1}, {v.SKEW_RANK: 0}] == [
        {key: value for key, value in span.attributes.items() if key == v.SKEW_RANK} for span in watched.spans
    ]


def test_the_longest_waits_of_a_step_are_spans(tmp_path: Path, clock: FakeClock) -> None:
    """Thirty-two of a rank; the number counts what the stage says of all of them, spans or not."""
    for rank in range(2):
        stages = [Did(f"s{k}", 1, [Met(1 + (1 - rank) * (2 + k), 1 + k)]) for k in range(40)]
        Peer(tmp_path, rank).step(1, [*stages, Did("unseen", 1, [Met(5 + 95 * rank)], shown=False)])
    watched = compared(tmp_path, clock)
    assert [(0, 1 + k, 2 + k) for k in range(8, 40)] == waited(watched)
    of_all = sum(2 + k for k in range(40)) / 1e3
    run = {v.SCOPE_KEY: "run"}
    assert [(0, run, round(of_all, 9)), (1, run, 0.095)] == watched.numbers(v.SKEW_WAIT)


def test_one_node_of_two_compares_its_own_ranks(tmp_path: Path, clock: FakeClock) -> None:
    """It says so. In a group of all ranks the readable ones are compared, in another those that were seen in it."""
    pairs = {0: ("dp 1", 2), 1: ("dp 2", 2)}
    for rank in range(2):
        group, size = pairs[rank]
        met = [Met(9 - rank * 4, 1, size=4), Met(9 - rank * 3, 1, group=group, size=size)]
        met += [Met(5 + rank * 2, 1, group="tp 0", size=3)]
        Peer(tmp_path, rank, 4).step(1, [Did(v.FORWARD, 10, met)])
    watched = compared(tmp_path, clock)
    found = [
        (span.resource[v.RANK], span.attributes[v.COMM_GROUP], (span.end_ns - span.start_ns) / MS)
        for span in watched.spans
    ]
    assert [(0, "default_pg 0", 4), (1, "tp 0", 2)] == found
    assert {"node"} == {point.attributes[v.SCOPE_KEY] for point in watched.points}


def test_a_row_that_was_left_out_may_be_that_of_the_last_rank(tmp_path: Path, clock: FakeClock) -> None:
    """Rank 3 of the group cannot be read; of the others rank 2 comes last, and has longer ones to show than this."""
    for rank in range(3):
        others = [Met(20, operation="broadcast")] * 32 if rank == 2 else []
        met = [Met(9 - 4 * rank, 1, group="dp 0", size=4), Met(9 - 4 * rank, 1, group="dp 1 of 2", size=3)]
        Peer(tmp_path, rank, 6).step(1, [Did(v.FORWARD, 1, [*met[:1], *others]), Did(v.REWARD, 1, met[1:])])
    watched = compared(tmp_path, clock)
    assert [(0, "dp 1 of 2", 2), (1, "dp 1 of 2", 2)] == [
        (span.resource[v.RANK], span.attributes[v.COMM_GROUP], span.attributes[v.SKEW_RANK]) for span in watched.spans
    ]


def test_a_slow_rank_has_a_point_every_step_once_it_was_named(tmp_path: Path, clock: FakeClock) -> None:
    """And it falls to 0 when the rank is not slow any more; collectives are no part of its own time."""
    ranks = [Peer(tmp_path, rank, 3) for rank in range(3)]
    for number in (1, 2, 3):
        for rank in ranks:
            extra = 50 if rank.rank == 1 and number == 2 else 0
            rank.step(number, [Did(v.REWARD, 10 + extra, [Met(60 - extra, number, size=3)]), Did(v.FORWARD, 100)])
    numbers = compared(tmp_path, clock).numbers(v.STRAGGLER_COST)
    assert [(1, 0.05), (1, 0.0)] == [(rank, value) for rank, _, value in numbers]


def test_a_checkpoint_that_is_read_is_another_stage_than_one_that_is_written(tmp_path: Path, clock: FakeClock) -> None:
    """As in the report: rank 1 is slow in reading."""
    for rank in range(3):
        load = Did(v.CHECKPOINT, 150 if rank == 1 else 50, more={v.CHECKPOINT_LOAD: True})
        Peer(tmp_path, rank, 3).step(1, [load, Did(v.CHECKPOINT, 100)])
    numbers = compared(tmp_path, clock).numbers(v.STRAGGLER_COST)
    assert [(1, {v.STAGE: "rl.checkpoint load", v.SCOPE_KEY: "run"}, 0.1)] == numbers


def test_on_a_device_ranks_are_compared_by_the_devices_time(tmp_path: Path, clock: FakeClock) -> None:
    """Where a stage only launches work its duration says nothing."""
    for rank in range(3):
        launched = {v.CLOCK: "host", v.DEVICE_TIME: 0.15 if rank == 1 else 0.1}
        Peer(tmp_path, rank, 3).step(1, [Did(v.FORWARD, 40 if rank == 2 else 5, more=launched), Did(v.REWARD, 100)])
    numbers = compared(tmp_path, clock).numbers(v.STRAGGLER_COST)
    assert [(1, {v.STAGE: v.FORWARD, v.SCOPE_KEY: "run"}, 0.05)] == numbers


def test_a_rank_that_dies_is_not_waited_for(tmp_path: Path, clock: FakeClock) -> None:
    """The others go on, two of three."""
    ranks = [Peer(tmp_path, rank, 3, identity=DEAD if rank == 2 else ALIVE) for rank in range(3)]
    for rank in ranks:
        rank.step(1, [Did(v.FORWARD, 1, [Met(9 - 2 * rank.rank, 1, size=3)])])
    for rank in ranks[:2]:
        rank.step(2, [Did(v.FORWARD, 1, [Met(9 - 2 * rank.rank, 2, size=2, group="default_pg 0 of world 2")])])
    watched = compared(tmp_path, clock)
    assert [(0, 1, 4), (1, 1, 2), (0, 2, 2)] == waited(watched)
    assert {"derived": 2} == watched.counts


def test_a_rank_that_hangs_holds_up_few_steps(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' steps wait for it, up to a time and a number; then they are given up, and counted."""
    monkeypatch.setattr(align, "KEPT_STEPS", 3)
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        rank.step(1, uneven(rank.rank))
    watched = compared(tmp_path, clock)
    for number in range(2, 8):
        ranks[0].step(number, uneven(0, 10 * number))
    watched.settle()
    assert {"derived": 1, "rank_missing": 3} == watched.counts
    watched.look(align.KEPT_S + 1)
    assert {"derived": 1, "rank_missing": 6} == watched.counts
    for number in range(2, 9):
        ranks[1].step(number, uneven(1, 10 * number))
    ranks[0].step(8, uneven(0, 80))
    watched.settle()
    assert {"derived": 2, "rank_missing": 6, "late": 6} == watched.counts
    assert [(0, 1, 20), (1, 3, 2), (0, 80, 20), (1, 82, 2)] == waited(watched)


def test_ranks_that_number_their_steps_differently_are_not_compared(tmp_path: Path, clock: FakeClock) -> None:
    """Rank 1 is one ahead: by their numbers in the group these are not the same collectives."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for step in range(1, 4):
        for rank in ranks:
            rank.step(step + rank.rank, uneven(rank.rank, 3 * step - 2))
    watched = compared(tmp_path, clock)
    assert ([], []) == (watched.spans, watched.points)
    assert {"alone": 1, "disagree": 2} == watched.counts


@pytest.mark.parametrize(
    ("numbers", "count"), [(((1, 2), (8, 9)), 10), (((1, 30), (1, 30)), 2)], ids=["the longest", "not waited for"]
)
def test_one_step_may_look_like_two(
    tmp_path: Path, clock: FakeClock, numbers: tuple[tuple[int, ...], ...], count: int
) -> None:
    """Ranks are longest in different collectives; launches that nobody waits for use numbers up: no disagreement."""
    for rank in range(2):
        did = Did(v.FORWARD, 1, [Met(5, number) for number in numbers[rank]], {v.COMM_COUNT: count})
        Peer(tmp_path, rank).step(1, [did])
    assert {"derived": 1} == compared(tmp_path, clock).counts


def test_a_restart_is_compared_by_itself(tmp_path: Path, clock: FakeClock) -> None:
    """Steps of the same numbers, ranks of another attempt and of another role; no pair of strangers."""
    for attempt, role in (("a" * 16, "trainer"), ("b" * 16, "trainer"), ("b" * 16, "critic")):
        for rank in range(2):
            identity = DEAD if attempt[0] == "a" else ALIVE
            Peer(tmp_path, rank, attempt=attempt, role=role, identity=identity).step(1, uneven(rank))
    watched = compared(tmp_path, clock)
    assert {"derived": 3} == watched.counts
    assert 6 == len(waited(watched)) == len({span.span_id for span in watched.spans})
    found = {(span.resource[v.ATTEMPT_ID], span.resource[v.ROLE], span.trace_id) for span in watched.spans}
    assert 3 == len(found)


def test_a_further_loop_follows_the_first(tmp_path: Path, clock: FakeClock) -> None:
    """Its numbers begin anew."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for loop, number in (("train", 1), ("train", 2), ("train.2", 1)):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number), loop=loop)
    assert {"derived": 3} == compared(tmp_path, clock).counts


def test_a_rank_alone_is_not_read(tmp_path: Path, clock: FakeClock) -> None:
    """There is nobody to compare it with; what it writes is not decoded any more."""
    alone = Peer(tmp_path, 0, 1)
    alone.step(1, uneven(0))
    watched = compared(tmp_path, clock)
    alone.step(2, uneven(0, 10))
    watched.settle()
    assert ({}, []) == (watched.counts, watched.requests)
    assert 0 < watched.deriver._tails[alone.identity.writer].unread
    assert 0 == watched.deriver._steps._spans


@pytest.mark.parametrize("cut", [{"status": 2}, {"is_cut": True}])
def test_failed_steps_are_not_compared(tmp_path: Path, clock: FakeClock, cut: dict[str, Any]) -> None:
    """An exception, or the end of the program, cut one short: its time is no step's."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for number in (1, 2):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number), **(cut if number == 1 else {}))
    assert {"derived": 1} == compared(tmp_path, clock).counts
