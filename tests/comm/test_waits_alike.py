"""Report and sidecar of the same journals: who waited how long, collective by collective and inside its group."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.time_use import Efficiency
from otel_rl.sidecar.self_journal import OwnJournal
from tests.peers import BEGIN_NS, WORLD, Did, Met, Peer
from tests.watched import DEAD, SIDECAR, FakeClock, Watched, clock, compared

__all__ = ["clock"]

STEPS = 10
Step = Callable[[int, int], list[Did]]
"""What a rank does in a step, by rank and number of the step."""


def played(directory: Path, world: int, did: Step, clock: FakeClock) -> tuple[Efficiency, Watched]:
    """Journal ten steps of all ranks, and give what report and sidecar make of them."""
    ranks = [Peer(directory, rank, world, identity=DEAD) for rank in range(world)]
    for number in range(1, STEPS + 1):
        for rank in ranks:
            rank.step(number, did(rank.rank, number))
    for rank in ranks:
        rank.die()
    report = build_report(open_run(directory), BEGIN_NS)
    return report.efficiency, compared(directory, clock)


def alternate(rank: int, number: int) -> list[Did]:
    """Two collectives in one call, each time another rank is last."""
    first, second = ((12, 2), (2, 12))[rank]
    return [Did(v.FORWARD, 20, [Met(first, 2 * number - 1), Met(second, 2 * number)])]


def subgroup(rank: int, number: int) -> list[Did]:
    """Two ranks have a slow collective of their own, and the others wait for them afterwards."""
    own = [Met(50, number, group="tp 0", size=2)] if rank < 2 else []
    return [Did(v.REWARD, 20, own), Did(v.OPTIMIZER, 5, [Met(52 if rank > 1 else 2, number, size=4)])]


def two_groups(rank: int, number: int) -> list[Did]:
    """One group's link is slower, and nobody waits."""
    group = rank // 2
    return [Did(v.REWARD, 20, [Met((10, 40)[group], number, group=f"tp {group}", size=2)])]


def in_groups(rank: int, number: int) -> list[Did]:
    """One of each group is last: the other waits 6 or 8 ms."""
    group = rank // 2
    return [Did(v.REWARD, 20, [Met((10, 4, 40, 32)[rank], number, group=f"tp {group}", size=2)])]


def made_anew(rank: int, number: int) -> list[Did]:
    """Two of three ranks make a group in each step, which the third has no part in."""
    made = Met(30 if rank == 0 else 2, operation="new_group", group=f"even {number}", size=2)
    return [Did(v.REWARD, 20, [Met(0, operation="new_group", group="", size=0) if rank == 2 else made])]


def barrier_in_idle(rank: int, number: int) -> list[Did]:
    """The barrier lies in what is idle time already."""
    met = [Met((31, 1)[rank], number, operation="barrier")]
    return [Did(v.IDLE, (10, 40)[rank], met, {v.IDLE_REASON: "queue"}), Did(v.REWARD, 50)]


@pytest.mark.parametrize(
    ("did", "expected"),
    [
        (alternate, [(10, 4, 0), (10, 4, 0)]),
        (subgroup, [(0, 52, 0), (0, 52, 0), (50, 2, 0), (50, 2, 0)]),
        (two_groups, [(0, 10, 0), (0, 10, 0), (0, 40, 0), (0, 40, 0)]),
        (in_groups, [(6, 4, 0), (0, 4, 0), (8, 32, 0), (0, 32, 0)]),
        (made_anew, [(28, 2, 0), (0, 2, 0), (0, 0, 0)]),
        (barrier_in_idle, [(0, 0, 41), (0, 0, 41)]),
    ],
)
def test_report_and_sidecar_know_the_same_waits(
    tmp_path: Path, clock: FakeClock, did: Step, expected: list[tuple[int, int, int]]
) -> None:
    """Wait, transfer and idle in the mean step of each rank, ms; the sidecar counts and shows the same waits."""
    found, watched = played(tmp_path, len(expected), did, clock)
    rows = [(row.wait_s, row.transfer_s, row.idle_s) for row in found.ranks]
    assert [tuple(pytest.approx(ms / 1e3) for ms in row) for row in expected] == rows
    waits_s = [pytest.approx(STEPS * wait_ms / 1e3) for wait_ms, _, _ in expected]
    totals = {rank: total_s for rank, _, total_s in watched.numbers(v.SKEW_WAIT)}
    assert dict(enumerate(waits_s)) == totals
    shown_s = dict.fromkeys(totals, 0.0)
    for span in watched.spans:
        shown_s[span.resource[v.RANK]] += (span.end_ns - span.start_ns) / 1e9  # type: ignore[index]
    assert dict(enumerate(waits_s)) == shown_s


def test_waits_for_now_one_now_another_are_no_slow_communication(tmp_path: Path, clock: FakeClock) -> None:
    """Of 34 ms in a step 14 are in collectives, but 10 of them are waits: idle, too, in goodput."""
    found, _ = played(tmp_path, 2, alternate, clock)
    assert [] == found.slow_communication
    idle_s = {part.kind: part.time_ns / 1e9 for part in found.goodput[-1].parts}["idle"]
    assert pytest.approx(2 * STEPS * 0.01) == idle_s


def by_turns(rank: int, number: int) -> list[Did]:
    """A hundred collectives in one call, by turns another rank is last: the longest of each are others."""
    return [Did(v.REWARD, 20, [Met(6 - 5 * (k % 2 == rank), 100 * number + k) for k in range(100)])]


def one_late(rank: int, number: int) -> list[Did]:
    """Of a hundred collectives rank 0 is late for the first one, of which it has no row therefore."""
    return [
        Did(v.REWARD, 20, [Met(62 if rank else 1, 100 * number), *(Met(2, 100 * number + k) for k in range(1, 100))])
    ]


@pytest.mark.parametrize(
    ("did", "waits_ms", "all_ms"), [(by_turns, (0, 0), (350, 350)), (one_late, (0, 61), (199, 260))]
)
def test_where_collectives_are_no_spans_a_wait_is_a_lower_bound(
    tmp_path: Path, clock: FakeClock, did: Step, waits_ms: tuple[int, int], all_ms: tuple[int, int]
) -> None:
    """Whatever may wait is not called transfer: no communication is slow, and what is idle is a lower bound, too."""
    found, watched = played(tmp_path, 2, did, clock)
    expected = [
        (pytest.approx(wait_ms / 1e3), pytest.approx((comm_ms - wait_ms) / 1e3), False)
        for wait_ms, comm_ms in zip(waits_ms, all_ms, strict=True)
    ]
    assert expected == [(row.wait_s, row.transfer_s, row.is_wait_exact) for row in found.ranks]
    assert [] == found.slow_communication
    assert [False] * sum(map(bool, waits_ms)) == [row.is_exact for row in found.bubbles]
    assert [False, False] == [row.is_idle_exact for row in found.goodput]
    totals = {rank: total_s for rank, _, total_s in watched.numbers(v.SKEW_WAIT)}
    assert {rank: pytest.approx(STEPS * wait_ms / 1e3) for rank, wait_ms in enumerate(waits_ms)} == totals


def slower_link(rank: int, number: int) -> list[Did]:
    """Of two groups of two the link of one is slower, in collectives none of which is among the 32 longest."""
    met = [Met(3, 1000 * number + k, size=4) for k in range(32)]
    own = [Met((0.1, 2.9)[rank // 2], 1000 * number + k, group=f"tp {rank // 2}", size=2) for k in range(200)]
    return [Did(v.FORWARD, 20, met + own), Did(v.OPTIMIZER, 1, [Met((570, 10)[rank // 2], 1000 * number + 32, size=4)])]


def shown_elsewhere(rank: int, number: int) -> list[Did]:
    """The same where the ranks compute for so long that the time in collectives does not tell."""
    forward, optimizer = slower_link(rank, number)
    own = Met(1, 1000 * number + 200, group=f"tp {rank // 2}", size=2)
    return [replace(forward, own_ms=900), Did(v.REWARD, 5, [own]), optimizer]


@pytest.mark.parametrize("did", [slower_link, shown_elsewhere])
def test_a_slower_link_of_some_ranks_is_no_waiting(tmp_path: Path, clock: FakeClock, did: Step) -> None:
    """The others wait for these behind it, and only there."""
    found, _ = played(tmp_path, 4, did, clock)
    expected = [(pytest.approx(wait_s), False) for wait_s in (0.56, 0.56, 0.0, 0.0)]
    assert expected == [(row.wait_s, row.is_wait_exact) for row in found.ranks]


def test_a_rank_that_meets_nobody_waits_for_nobody(tmp_path: Path, clock: FakeClock) -> None:
    """However many of its collectives are no spans."""
    found, _ = played(
        tmp_path, 1, lambda _, number: [Did(v.REWARD, 9, [Met(1, 40 * number + k, size=1) for k in range(40)])], clock
    )
    assert [(0.0, True)] == [(row.wait_s, row.is_wait_exact) for row in found.ranks]
    assert [True, True] == [row.is_idle_exact for row in found.goodput]


@pytest.mark.parametrize(("size", "status", "is_exact"), [(2, 0, True), (2, 2, False), (1, 2, True)])
def test_waits_in_a_step_that_raised_are_not_known(tmp_path: Path, size: int, status: int, is_exact: bool) -> None:
    """They are not compared, so idle is a lower bound, unless each rank meets nobody; averages do without the step."""
    ranks = [Peer(tmp_path, rank, identity=DEAD) for rank in (0, 1)]
    for number, rank in itertools.product(range(1, STEPS + 1), ranks):
        group = WORLD if size == 2 else f"own {rank.rank}"
        met = Met(110 if rank.rank else 10, number, group=group, size=size)
        rank.step(number, [Did(v.OPTIMIZER, 1, [met])], status=status if number == STEPS else 0)
    for rank in ranks:
        rank.die()
    found = build_report(open_run(tmp_path), BEGIN_NS).efficiency
    assert [is_exact, is_exact] == [row.is_idle_exact for row in found.goodput]
    assert [True, True] == [row.is_wait_exact for row in found.ranks]


def test_a_rank_that_is_as_slow_as_another_costs_in_every_step(tmp_path: Path, clock: FakeClock) -> None:
    """Now one of them is the slowest, now the other."""

    def did(rank: int, number: int) -> list[Did]:
        return [Did(v.REWARD, (10, 10, 10, 30.2 if number % 2 else 30, 30.1)[rank])]

    _, watched = played(tmp_path, 5, did, clock)
    points = [(rank, value) for rank, _, value in watched.numbers(v.STRAGGLER_COST)]
    odd, even = [(3, 0.0202), (4, 0.0201)], [(3, 0.02), (4, 0.0201)]
    assert (odd + even) * (STEPS // 2) == points


def test_an_excess_is_judged_by_the_step_and_not_by_its_stages(tmp_path: Path, clock: FakeClock) -> None:
    """A rank takes 3 ms longer in a stage of 10 ms: much of the stages, and below 2 % of a step of 200 ms."""

    def did(rank: int, number: int) -> list[Did]:
        waits = Did(v.IDLE, 190 - 3 * (rank == 2), more={v.IDLE_REASON: "queue"})
        return [Did(v.REWARD, 13 if rank == 2 else 10), waits]

    found, watched = played(tmp_path, 3, did, clock)
    assert ([], []) == (found.stragglers, watched.numbers(v.STRAGGLER_COST))


def test_a_counter_is_of_one_scope(tmp_path: Path, clock: FakeClock) -> None:
    """What was waited among the ranks of a node is no part of what is waited among all, also for the next sidecar."""
    ranks = [Peer(tmp_path, rank, 3) for rank in range(2)]
    watched = Watched(tmp_path, clock)
    for rank in ranks:
        rank.step(1, [Did(v.REWARD, 10, [Met(9 - 5 * rank.rank, 1, size=3)])])
    watched.settle()
    ranks.append(Peer(tmp_path, 2, 3))
    for rank in ranks:
        rank.step(2, [Did(v.REWARD, 10, [Met(9 - 4 * rank.rank, 2, size=3)])])
    watched.settle()
    own = OwnJournal(tmp_path, SIDECAR)
    own.append(watched.requests)
    own.close()
    for rank in ranks:
        rank.step(3, [Did(v.REWARD, 10, [Met(9 - 4 * rank.rank, 3, size=3)])])
    following = Watched(tmp_path, clock, replace(SIDECAR, writer="sidecar-0-2-b"))
    following.settle()
    found = [
        (rank, attributes[v.SCOPE_KEY], value)
        for one in (watched, following)
        for rank, attributes, value in one.numbers(v.SKEW_WAIT)
    ]
    node = [(0, "node", 0.005), (1, "node", 0.0)]
    run = [[(0, "run", 0.008 * k), (1, "run", 0.004 * k), (2, "run", 0.0)] for k in (1, 2)]
    assert [*node, *run[0], *run[1]] == found


@pytest.mark.parametrize(("size", "waits"), [(4096, [0.02, 0.0]), (1 << 20, [0.0, 0.0]), (0, [0.0, 0.0])])
def test_ranks_wait_in_small_broadcasts(tmp_path: Path, clock: FakeClock, size: int, waits: list[float]) -> None:
    """As in that of DDP's buffers: handing them over takes no time. A larger one each leaves when it has it."""

    def did(rank: int, number: int) -> list[Did]:
        late_ms, met_ms = ((10, 25), (30, 5))[rank]
        more = {v.COMM_BYTES: size} if size else {}
        return [Did(v.REWARD, late_ms), Did(v.FORWARD, 10, [Met(met_ms, number, "_broadcast_coalesced", more=more)])]

    found, watched = played(tmp_path, 2, did, clock)
    assert [pytest.approx(one) for one in waits] == [row.wait_s for row in found.ranks]
    waited = [sum(seconds for rank, _, seconds in watched.numbers(v.SKEW_WAIT)[-2:] if rank == one) for one in (0, 1)]
    assert [pytest.approx(one * STEPS) for one in waits] == waited


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_rank_that_is_slow_under_no_stage(tmp_path: Path, clock: FakeClock, is_seen: bool) -> None:
    """It is named where the other is seen to wait for it; else it may be waiting itself, in what nobody sees."""

    def did(rank: int, number: int) -> list[Did]:
        late_ms, met_ms = ((1, 25), (21, 5))[rank]
        if is_seen:
            return [Did("", late_ms), Did(v.FORWARD, 20, [Met(met_ms, number)])]
        return [Did("", late_ms), Did(v.FORWARD, 20 + met_ms)]

    found, watched = played(tmp_path, 2, did, clock)
    named = [(1, v.OTHER, pytest.approx(0.02), STEPS - 2)] if is_seen else []
    slow = [(one.rank, one.stage, one.cost_s, one.slow_steps) for one in found.stragglers]
    assert named == [one for one in slow if one[1] == v.OTHER]
    costs = [(1, {v.STAGE: v.OTHER, v.SCOPE_KEY: "run"}, 0.02)] * STEPS if is_seen else []
    assert costs == [one for one in watched.numbers(v.STRAGGLER_COST) if one[1][v.STAGE] == v.OTHER]
    report = build_report(open_run(tmp_path), BEGIN_NS)
    rows = [(row.straggler, row.excess_s) for row in report.balance if row.stage == v.OTHER]
    assert ([(Rank("trainer", 1), pytest.approx(0.02))] if is_seen else []) == rows
