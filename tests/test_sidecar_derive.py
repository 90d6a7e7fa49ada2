"""Comparing ranks while they run: known waits become exactly these spans and numbers, whatever the clocks say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.journal.encode import Request
from otel_rl.journal.files import Journal
from otel_rl.journal.identity import WriterIdentity
from otel_rl.journal.read import open_run
from otel_rl.journal.views import PointView, SpanView, points, spans
from otel_rl.report.build import build_report
from otel_rl.report.otlp_json import lines
from otel_rl.sidecar import derive, follow, meet, parts
from otel_rl.sidecar.derive import Deriver
from otel_rl.sidecar.node import Node
from otel_rl.sidecar.own import OwnJournal
from tests.peers import ALIVE, BEGIN_NS, MS, Did, Met, Peer

SIDECAR = replace(ALIVE, writer="sidecar-0-1-a")
DEAD = replace(ALIVE, start_time=1)


class FakeClock:
    """A monotonic clock that the test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Watched:
    """A sidecar's comparison of a directory, look by look."""

    def __init__(self, directory: Path, clock: FakeClock, identity: WriterIdentity = SIDECAR) -> None:
        self.clock = clock
        self.said: list[str] = []
        self.node = Node(directory, (), lambda writer: writer.boot_id == ALIVE.boot_id, print)
        self.deriver = Deriver(directory, identity, self.said.append)
        self.journal = Journal(identity, [])
        self.requests: list[Request] = []

    def look(self, seconds: float = 0.0) -> list[Request]:
        """Look, so many seconds later."""
        self.clock.seconds += seconds
        self.node._scan_at = 0.0
        self.node.look()
        made = self.deriver.work(self.node)
        self.requests += made
        return made

    def settle(self) -> list[Request]:
        """Look twice, so far apart that whatever is there has settled."""
        return [*self.look(), *self.look(parts.SETTLED_S)]

    @property
    def spans(self) -> list[SpanView]:
        """What was derived."""
        payloads = [request.payload for request in self.requests if request.signal == "traces"]
        return [span for payload in payloads for span in spans(payload, self.journal, None)]

    @property
    def points(self) -> list[PointView]:
        """The same of metrics."""
        payloads = [request.payload for request in self.requests if request.signal == "metrics"]
        return [point for payload in payloads for point in points(payload, self.journal, None)]

    def numbers(self, name: str) -> list[Any]:
        """Rank, attributes and value of the points of one metric."""
        return [
            (point.resource[v.RANK], dict(point.attributes), round(point.value, 9))
            for point in self.points
            if point.name == name
        ]

    @property
    def counts(self) -> dict[str, int]:
        """What became of the steps."""
        return {str(dict(sample.labels)[v.OUTCOME]): int(sample.value) for sample in self.deriver.samples()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The time that the comparison sees."""
    clock = FakeClock()
    monkeypatch.setattr(derive, "monotonic", clock)
    return clock


def uneven(rank: int, first: int = 1) -> list[Did]:
    """A step: rank 1 is 20 ms slower in its rewards, rank 0 waits for it, then 2 ms the other way round."""
    slow, fast = (30, 10) if rank == 1 else (10, 30)
    return [
        Did(v.REWARD, slow, [Met(fast - 5, first)]),
        Did(v.FORWARD, 8, [Met(1, first + 1), Met(1.5 if rank == 0 else 3.5, first + 2)]),
    ]


def test_waits_become_spans_and_numbers(tmp_path: Path, clock: FakeClock) -> None:
    """Whole trees: parents, ids, times by the waiter's own clock, attributes, resources."""
    ranks = [Peer(tmp_path, rank, clock_ms=rank * 7_000) for rank in range(2)]
    made = [rank.step(1, uneven(rank.rank)) for rank in ranks]
    watched = Watched(tmp_path, clock)
    assert [] == watched.look(), "a step was compared whose spans may still come"
    watched.look(parts.SETTLED_S)
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


def waited(watched: Watched) -> list[tuple[int, int, float]]:
    """Rank, sequence and wait (ms) of the spans that were derived."""
    return [
        (span.resource[v.RANK], span.attributes.get(v.COMM_SEQUENCE, 0), (span.end_ns - span.start_ns) / MS)  # type: ignore[misc]
        for span in watched.spans
    ]


def journaled(directory: Path) -> list[SpanView]:
    """The spans of a run, in the order in which they were written."""
    return list(open_run(directory).spans(parts.KEYS))


def compared(directory: Path, clock: FakeClock) -> Watched:
    """Look until everything that is there was compared."""
    watched = Watched(directory, clock)
    watched.settle()
    return watched


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


def test_a_slow_rank_has_a_point_every_step_once_it_was_named(tmp_path: Path, clock: FakeClock) -> None:
    """And it falls to 0 when the rank is not slow any more; collectives are no part of its own time."""
    ranks = [Peer(tmp_path, rank, 3) for rank in range(3)]
    for number in (1, 2, 3):
        for rank in ranks:
            extra = 50 if rank.rank == 1 and number == 2 else 0
            rank.step(number, [Did(v.REWARD, 10 + extra, [Met(60 - extra, number, size=3)]), Did(v.FORWARD, 100)])
    numbers = compared(tmp_path, clock).numbers(v.STRAGGLER_COST)
    assert [(1, 0.05), (1, 0.0)] == [(rank, value) for rank, _, value in numbers]


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
    monkeypatch.setattr(meet, "KEPT_STEPS", 3)
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        rank.step(1, uneven(rank.rank))
    watched = compared(tmp_path, clock)
    for number in range(2, 8):
        ranks[0].step(number, uneven(0, 10 * number))
    watched.settle()
    assert {"derived": 1, "rank_missing": 3} == watched.counts
    watched.look(meet.KEPT_S + 1)
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


def test_failed_steps_are_not_compared(tmp_path: Path, clock: FakeClock) -> None:
    """An exception cut one short: its time is no step's."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for number in (1, 2):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number), status=2 if number == 1 else 0)
    assert {"derived": 1} == compared(tmp_path, clock).counts


# --- sidecars, nodes, files -------------------------------------------------------------------------------------------


def test_a_sidecar_goes_on_where_the_last_one_ended(tmp_path: Path, clock: FakeClock) -> None:
    """Nothing comes twice, and the counter goes on; the rest is the same as it would have been."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    whole = [Peer(tmp_path / "whole", rank) for rank in range(2)]
    for rank in (*ranks, *whole):
        rank.step(1, uneven(rank.rank, 10))
    first = compared(tmp_path, clock)
    own = OwnJournal(tmp_path, SIDECAR)
    own.append(first.requests)
    own.close()
    for rank in (*ranks, *whole):
        rank.step(2, uneven(rank.rank, 20))
    second = Watched(tmp_path, clock, replace(SIDECAR, writer="sidecar-0-2-b"))
    second.settle()
    by_one = compared(tmp_path / "whole", clock)
    assert [(0, 10, 20), (1, 12, 2)] == waited(first)
    assert [(0, 20, 20), (1, 22, 2)] == waited(second)
    assert by_one.numbers(v.SKEW_WAIT) == first.numbers(v.SKEW_WAIT) + second.numbers(v.SKEW_WAIT)
    assert [span.span_id for span in by_one.spans] == [span.span_id for span in first.spans + second.spans]
    begun = {(p.resource[v.RANK], p.start_ns) for p in first.points + second.points if p.name == v.SKEW_WAIT}
    assert 2 == len(begun)
    assert {rank.identity.writer for rank in ranks} == set(second.deriver._tails), "it compares what it made itself"


def test_an_unfinished_start_is_done_again_the_same(tmp_path: Path, clock: FakeClock) -> None:
    """A sidecar that was killed before its journal had the points: the same spans, ids and all."""
    for rank in range(2):
        Peer(tmp_path, rank).step(1, uneven(rank))
    first, second = compared(tmp_path, clock), compared(tmp_path, clock)
    assert [request.payload for request in first.requests] == [request.payload for request in second.requests]
    assert 4 == len(first.requests)


def test_one_sidecar_of_several_nodes_compares_all(tmp_path: Path, clock: FakeClock) -> None:
    """In a directory that nodes share it is the one on the lowest rank's node; each rank lives as its node says."""
    elsewhere = replace(ALIVE, boot_id="another", pid_namespace="another")
    for rank in range(2):
        Peer(tmp_path, rank, identity=elsewhere if rank else ALIVE).step(1, uneven(rank))
    here = compared(tmp_path, clock)
    assert [(0, 1, 20), (1, 3, 2)] == waited(here)
    assert {"run"} == {point.attributes[v.SCOPE_KEY] for point in here.points}
    there = Watched(tmp_path, clock, replace(SIDECAR, boot_id="another"))
    there.settle()
    assert ([], {}) == (there.requests, there.counts)


def test_what_comes_too_fast_is_passed_over_as_a_whole(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No half step is compared: of that which was under way the first part is not known."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    watched = Watched(tmp_path, clock)
    late: list[list[Any]] = []
    for number in (1, 2, 3):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    late = [rank.step(4, uneven(rank.rank, 40), is_journaled=False) for rank in ranks]
    for rank, spans_ in zip(ranks, late, strict=True):
        rank.write(spans_[:2])
    monkeypatch.setattr(derive, "BEHIND_BYTES", 100)
    watched.settle()
    monkeypatch.undo()
    monkeypatch.setattr(derive, "monotonic", clock)
    for rank, spans_ in zip(ranks, late, strict=True):
        rank.write(spans_[2:4])
        rank.write(spans_[4:][::-1])
    for number in (5, 6):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    watched.settle()
    assert [(0, 50, 20), (1, 52, 2), (0, 60, 20), (1, 62, 2)] == waited(watched)
    assert ({"behind": 1, "derived": 2}, 1) == (watched.counts, len(watched.said))


@pytest.mark.parametrize("seconds", [0.0, parts.SETTLED_S])
def test_what_waits_is_forgotten_where_others_are_passed_over(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Two ranks of three are not compared in place of all."""
    ranks = [Peer(tmp_path, rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.step(1, uneven(rank.rank, 10))
    watched = compared(tmp_path, clock)
    for rank in ranks[:2]:
        rank.step(2, uneven(rank.rank, 20))
    watched.look()
    watched.look(seconds)
    ranks[2].step(2, uneven(2, 20))
    monkeypatch.setattr(derive, "BEHIND_BYTES", 100)
    watched.look()
    monkeypatch.setattr(derive, "BEHIND_BYTES", 1 << 20)
    for number in (3, 4):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    watched.settle()
    assert {"derived": 2, "behind": 1} == watched.counts


def test_a_step_is_over_only_where_all_was_read(tmp_path: Path) -> None:
    """Its end may be in one frame and its stages in the next, which is read much later where there is much to read."""
    peer = Peer(tmp_path, 0)
    peer.step(1, uneven(0))
    found = parts.Parts()
    for span in journaled(tmp_path):
        found.add(span, 0, 0.0)
    assert [] == list(found.settled(100.0, set()))
    assert [1] == [part.number for part in found.settled(100.0, {peer.identity.writer})]


def test_a_trace_that_goes_on_outlives_those_that_do_not(tmp_path: Path) -> None:
    """A long step among thousands of traces of single rollouts."""
    peer = Peer(tmp_path, 0)
    for number in (1, 2):
        peer.step(number, uneven(0))
    first, second = (journaled(tmp_path)[k * 8 : k * 8 + 8] for k in range(2))
    assert ({v.LOOP, f"{v.RANK_SPAN} 0"}, 2) == (
        {one.name for one in first[:2]},
        len({one.trace_id for one in (*first, *second)}),
    )
    found = parts.Parts(kept_spans=8)
    for span in (*first[2:5], *second[2:5], *first[5:], first[1]):
        found.add(span, 0, 0.0)
    assert [1] == [part.number for part in found.settled(100.0, {peer.identity.writer})]


def test_too_many_spans_go_with_their_step(tmp_path: Path, clock: FakeClock) -> None:
    """Memory is bounded: the trace that was touched longest ago goes."""
    found = parts.Parts(kept_spans=8)
    made = [Peer(tmp_path, rank) for rank in range(2)]
    for rank in made:
        for number in (1, 2):
            rank.step(number, uneven(rank.rank))
    for span in journaled(tmp_path):
        found.add(span, 0, 0.0)
    assert 3 == found.overflown
    assert [(1, 2)] == [
        (part.rank, part.number) for part in found.settled(parts.SETTLED_S, {peer.identity.writer for peer in made})
    ]


def test_a_long_backlog_is_compared_step_by_step(tmp_path: Path, clock: FakeClock) -> None:
    """Without waiting for each step to settle: two later ones of the rank say that it is over."""
    for rank in range(2):
        peer = Peer(tmp_path, rank)
        for number in range(1, 11):
            peer.step(number, uneven(rank, 10 * number))
    watched = Watched(tmp_path, clock)
    watched.look()
    assert {"derived": 8} == watched.counts


def test_a_journal_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once; the others are compared."""
    ranks = [Peer(tmp_path, rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.step(1, uneven(rank.rank))
    watched = compared(tmp_path, clock)
    read = follow.Stream.pieces

    def pieces(stream: follow.Stream, *arguments: Any, **options: Any) -> Iterator[follow.Piece]:
        if stream.writer == ranks[2].identity.writer:
            raise OSError("a stale handle")
        return read(stream, *arguments, **options)

    monkeypatch.setattr(follow.Stream, "pieces", pieces)
    for rank in ranks:
        rank.step(2, uneven(rank.rank, 20))
    for _ in range(3):
        watched.settle()
    writer = ranks[2].identity.writer
    assert [f"the spans of {writer} cannot be compared with those of others: a stale handle"] == watched.said
    assert ({"derived": 2}, False) == (watched.counts, watched.deriver.is_behind)
    assert [(0, 20, 20), (1, 22, 2)] == waited(watched)


def test_a_journal_that_lost_its_begin_is_compared_from_where_it_is_whole(tmp_path: Path, clock: FakeClock) -> None:
    """At the size cap the oldest segments go, some of them before they were read; damage is passed over."""
    ranks = [Peer(tmp_path, rank, segment_bytes=1500) for rank in range(2)]
    for number in range(1, 6):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    first = sorted(tmp_path.glob("trainer-0-*.traces.*.otlp"))
    assert 3 < len(first)
    first[0].unlink()
    first[1].unlink()
    second = sorted(tmp_path.glob("trainer-1-*.traces.*.otlp"))[0]
    second.write_bytes(second.read_bytes()[:-1])
    watched = compared(tmp_path, clock)
    found = {sequence // 10 for _, sequence, _ in waited(watched)}
    assert {5} <= found and not {1, 2} & found
    assert 20.0 == max(wait for _, _, wait in waited(watched))


def test_the_report_is_the_same_with_and_without(tmp_path: Path, clock: FakeClock) -> None:
    """What was derived is counted nowhere twice, and the sidecar is no rank and keeps no run alive."""
    for rank in range(2):
        peer = Peer(tmp_path, rank, identity=DEAD)
        for number in range(1, 5):
            peer.step(number, uneven(rank, 10 * number))
    before = build_report(open_run(tmp_path), 0)
    watched = compared(tmp_path, clock)
    own = OwnJournal(tmp_path, SIDECAR)
    own.append(watched.requests)
    own.close()
    after = build_report(open_run(tmp_path), 0)
    assert 8 == len(watched.spans)
    assert before == after
    exported = "".join(line for line, _ in lines(open_run(tmp_path)))
    assert all(exported.count(span.span_id.hex()) == 1 for span in watched.spans)
