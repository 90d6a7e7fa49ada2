"""Comparing ranks through what happens to sidecars, nodes and files; nothing twice, no half step, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.otlp.encode import SpanEncoder
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.runs.otlp_json import lines
from otel_rl.sidecar import streams
from otel_rl.sidecar.compare import compare, rank_step, tail
from otel_rl.sidecar.self_journal import OwnJournal
from tests.made_runs import FakeSpan
from tests.peers import ALIVE, BEGIN_NS, MS, Did, Met, Peer
from tests.watched import DEAD, SIDECAR, FakeClock, Watched, clock, collect, compared, journaled, uneven, waited

__all__ = ["clock"]


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
    monkeypatch.setattr(compare, "BEHIND_BYTES", 100)
    watched.settle()
    monkeypatch.undo()
    monkeypatch.setattr(compare, "monotonic", clock)
    for rank, spans_ in zip(ranks, late, strict=True):
        rank.write(spans_[2:3])
        rank.write(spans_[3:][::-1])
    for number in (5, 6):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    watched.settle()
    assert [(0, 50, 20), (1, 52, 2), (0, 60, 20), (1, 62, 2)] == waited(watched)
    assert ({"behind": 1, "derived": 2}, 1) == (watched.counts, len(watched.said))


@pytest.mark.parametrize("seconds", [0.0, rank_step.LAST_SPANS_S])
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
    monkeypatch.setattr(compare, "BEHIND_BYTES", 100)
    watched.look()
    monkeypatch.setattr(compare, "BEHIND_BYTES", 1 << 20)
    for number in (3, 4):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    watched.settle()
    assert {"derived": 2, "behind": 1} == watched.counts


def test_a_step_is_over_only_where_all_was_read(tmp_path: Path) -> None:
    """Its end may be in one frame and its stages in the next, which is read much later where there is much to read."""
    peer = Peer(tmp_path, 0)
    peer.step(1, uneven(0))
    found = rank_step.StepCollector()
    collect(found, journaled(tmp_path))
    assert [] == list(found.completed(100.0, set()))
    assert [1] == [part.number for part in found.completed(100.0, {peer.identity.writer})]


def test_a_trace_that_goes_on_outlives_those_that_do_not(tmp_path: Path) -> None:
    """A long step among thousands of traces of single rollouts."""
    peer = Peer(tmp_path, 0)
    for number in (1, 2):
        peer.step(number, uneven(0))
    written = journaled(tmp_path)
    first, second = written[:7], written[7:]
    assert [v.LOOP, f"{v.RANK_SPAN} 0"] == [span.name for span in first[:2]]
    found = rank_step.StepCollector(kept_spans=7)
    collect(found, (*first[2:5], *second[2:5], *first[5:], first[1]))
    assert [(1, 3)] == [(part.number, len(part.collectives)) for part in found.completed(100.0, {peer.identity.writer})]


def test_too_many_spans_go_with_their_step(tmp_path: Path, clock: FakeClock) -> None:
    """Memory is bounded: the trace that was touched longest ago goes."""
    found = rank_step.StepCollector(kept_spans=8)
    made = [Peer(tmp_path, rank) for rank in range(2)]
    for rank in made:
        for number in (1, 2):
            rank.step(number, uneven(rank.rank))
    collect(found, journaled(tmp_path))
    assert 3 == found.overflown
    assert [(1, 2)] == [
        (part.rank, part.number)
        for part in found.completed(rank_step.LAST_SPANS_S, {peer.identity.writer for peer in made})
    ]


def test_a_long_backlog_is_compared_step_by_step(tmp_path: Path, clock: FakeClock) -> None:
    """Without waiting for each to settle: one that ends 12 s later, by the rank's own clock, says that it is over."""
    for rank in range(2):
        peer = Peer(tmp_path, rank)
        for number in range(1, 11):
            peer.step(number, [Did(v.REWARD, 5_950 + 5 * rank, [Met(20 - 5 * rank, number)])])
    watched = Watched(tmp_path, clock)
    watched.look()
    assert {"derived": 7} == watched.counts


def test_a_stage_whose_device_is_late_is_in_its_step(tmp_path: Path, clock: FakeClock) -> None:
    """It is journaled up to 10 s and a cycle behind its step, with many steps between; nothing of it is missed."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    host = {v.CLOCK: "host"}
    late = []
    for rank in ranks:
        backward = Did(v.BACKWARD, 1, more={**host, v.DEVICE_TIME: 0.4 if rank.rank else 0.1})
        spans = rank.step(1, [Did(v.REWARD, 900), backward], is_journaled=False)
        late.append([span for span in spans if span.name == v.BACKWARD])
        rank.write([span for span in spans if span.name != v.BACKWARD][::-1])
    watched = Watched(tmp_path, clock)
    for number in range(2, 12):
        for rank in ranks:
            rank.step(number, [Did(v.REWARD, 1_000)])
        watched.look(1.0)
    assert {} == watched.counts, "a step was compared of which a stage may still come"
    for rank, spans in zip(ranks, late, strict=True):
        rank.write(spans)
        rank.step(12, [Did(v.REWARD, 1_100)])
        rank.step(13, [Did(v.REWARD, 1_000)])
    watched.look(1.0)
    assert [(1, {v.STAGE: v.BACKWARD, v.SCOPE_KEY: "run"}, 0.3)] == watched.numbers(v.STRAGGLER_COST)[:1]


@pytest.mark.parametrize(
    ("name", "told", "expected"),
    [
        (v.FORWARD, {}, (0, [1, 2])),
        (v.FORWARD, {v.CLOCK: "host"}, (2, [])),
        (v.REWARD, {v.DEVICE_TIME: 0.005}, (2, [])),
    ],
)
def test_where_memory_is_short_only_what_is_whole_is_compared(
    tmp_path: Path, name: str, told: dict[str, Any], expected: tuple[int, list[int]]
) -> None:
    """Two steps later a step is whole where no device is waited for; where one is, it is given up and counted."""
    peer = Peer(tmp_path, 0)
    for number in (1, 2, 3, 4):
        peer.step(number, [Did(name, 5, more=told)] * 4)
    found = rank_step.StepCollector(kept_spans=14)
    collect(found, journaled(tmp_path))
    assert expected == (found.overflown, [part.number for part in found.completed(0.0, set())])


def test_nothing_is_kept_of_a_step_that_is_over(tmp_path: Path) -> None:
    """Neither of one that failed, whose end is read before its stages, nor what comes late of one that was taken."""
    peer = Peer(tmp_path, 0)
    for number in (1, 2, 3, 4):
        peer.step(number, uneven(0), status=2 * (number % 2))
    found, written = rank_step.StepCollector(), journaled(tmp_path)
    collect(found, written)
    waiting = len(found._traces), found._spans
    taken = [part.number for part in found.completed(100.0, {peer.identity.writer})]
    collect(found, written, 100.0)
    again = list(found.completed(200.0, {peer.identity.writer}))
    assert ((2, 12), [2, 4], []) == (waiting, taken, again)
    assert (0, 0, 0) == (len(found._traces), found._spans, found.overflown)


def test_so_many_steps_that_are_over_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of each writer, and none of one that is forgotten."""
    monkeypatch.setattr(rank_step, "KEPT_PASSED", 2)
    peers = [Peer(tmp_path, rank) for rank in range(2)]
    for peer in peers:
        for number in (1, 2, 3):
            peer.step(number, uneven(peer.rank), status=2)
    found = rank_step.StepCollector()
    collect(found, journaled(tmp_path))
    found.forget(peers[0].identity.writer)
    assert {peers[1].identity.writer: 2} == {writer: len(passed) for writer, passed in found._passed.items()}
    again = [span for span in journaled(tmp_path) if span.name == v.REWARD]
    collect(found, [span for span in again if span.journal.identity.writer == peers[1].identity.writer])
    assert 1 == len(found._traces), "more than the first of three is forgotten"


def test_a_step_that_lost_its_first_spans_is_not_compared(tmp_path: Path) -> None:
    """They were too many to wait for its end, which comes later: it is too large, once."""
    peer = Peer(tmp_path, 0)
    peer.step(1, uneven(0))
    root, container, *stages = journaled(tmp_path)
    found = rank_step.StepCollector(kept_spans=3)
    collect(found, (*stages, container, container, root))
    assert ([], 1, 0) == (list(found.completed(100.0, {peer.identity.writer})), found.overflown, len(found._traces))


def test_nothing_is_kept_of_a_step_that_was_let_go(tmp_path: Path) -> None:
    """What comes of it after all was passed over."""
    peer = Peer(tmp_path, 0)
    peer.step(1, uneven(0))
    written = journaled(tmp_path)
    found = rank_step.StepCollector()
    collect(found, written[:4])
    found.clear()
    collect(found, written[4:])
    assert (0, 0) == (len(found._traces), found._spans)


def test_a_clock_that_was_set_back_settles_nothing_early(tmp_path: Path) -> None:
    """An hour earlier a step is no sign that one of later is over, nor the other way round."""
    for clock_ms, number in ((3_600_000, 1), (0, 2), (0, 3)):
        Peer(tmp_path / str(number), 0, clock_ms=clock_ms).step(number, uneven(0))
    found = rank_step.StepCollector()
    for number in (1, 2, 3):
        collect(found, journaled(tmp_path / str(number)))
    assert [] == list(found.completed(0.0, set()))


def test_it_takes_little_time_at_once(tmp_path: Path, clock: FakeClock) -> None:
    """The sidecar does other things on that thread: so much at a time, and a pause where it took longer."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for number in range(1, 13):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
    watched = Watched(tmp_path, clock)
    clock.tick = compare.WORK_S / 10
    watched.look()
    left = [tail.unread for tail in watched.deriver._tails.values()]
    assert 0 < min(left)
    watched.look()
    assert left == [tail.unread for tail in watched.deriver._tails.values()], "it goes on at once"
    for _ in range(8):
        watched.look(rank_step.LAST_SPANS_S)
    assert {"derived": 12} == watched.counts


def test_a_journal_that_cannot_be_read_holds_up_no_other(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once; the others are compared."""
    ranks = [Peer(tmp_path, rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.step(1, uneven(rank.rank))
    watched = compared(tmp_path, clock)
    read = streams.JournalStream.entries

    def entries(stream: streams.JournalStream, *arguments: Any, **options: Any) -> Iterator[streams.Entry]:
        if stream.writer == ranks[2].identity.writer:
            raise OSError("a stale handle")
        return read(stream, *arguments, **options)

    monkeypatch.setattr(streams.JournalStream, "entries", entries)
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


def early(rank: Peer) -> None:
    """Journal a span of another library, before the rank knows its attempt."""
    resource = {key: value for key, value in rank.resource.items() if key != v.ATTEMPT_ID}
    span = FakeSpan("load model", 77 + rank.rank, 88 + rank.rank, 0, BEGIN_NS - 9 * MS, BEGIN_NS - 8 * MS, {})
    for request in SpanEncoder({**resource, v.SERVICE_INSTANCE_ID: "early"}, "1.0").encode([span]):
        rank._writer.append(request.signal, request.payload, request.count, request.first_ns, request.last_ns)


def test_what_others_record_in_set_up_does_not_say_who_writes(tmp_path: Path, clock: FakeClock) -> None:
    """A rank of several learns its attempt late: it is not met before, and goes on where the last sidecar ended."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    early(ranks[1])
    first = Watched(tmp_path, clock)
    first.look()
    assert [] == list(first.deriver._tails)
    early(ranks[1])
    for rank in ranks:
        rank.step(1, uneven(rank.rank, 10))
    first.settle()
    own = OwnJournal(tmp_path, SIDECAR)
    own.append(first.requests)
    own.close()
    for rank in ranks:
        rank.step(2, uneven(rank.rank, 20))
    second = Watched(tmp_path, clock, replace(SIDECAR, writer="sidecar-0-2-b"))
    second.settle()
    assert ([(0, 10, 20), (1, 12, 2)], [(0, 20, 20), (1, 22, 2)]) == (waited(first), waited(second))
    assert [0.02, 0.002, 0.04, 0.004] == [one[2] for one in first.numbers(v.SKEW_WAIT) + second.numbers(v.SKEW_WAIT)]


def test_a_long_set_up_is_looked_through_once(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the sidecar looks."""
    rank = Peer(tmp_path, 1)
    seen: list[bytes] = []
    decode = tail.decode_spans
    monkeypatch.setattr(tail, "decode_spans", lambda payloads: seen.extend(payloads) or decode(payloads))
    monkeypatch.setattr(tail, "FIRST_BYTES", 0)
    watched = Watched(tmp_path, clock)
    for expected in (1, 2, 3):
        early(rank)
        watched.look()
        watched.look()
        assert (expected, {}) == (len(seen), watched.deriver._tails)


def test_an_only_rank_needs_no_attempt(tmp_path: Path, clock: FakeClock) -> None:
    """Nothing is waited for where there is nobody to share one with."""
    alone = Peer(tmp_path, 0, 1)
    early(alone)
    watched = Watched(tmp_path, clock)
    watched.look()
    assert [alone.identity.writer] == list(watched.deriver._tails)


def test_a_clock_that_was_set_back_behind_a_restart_is_said(tmp_path: Path, clock: FakeClock) -> None:
    """Its steps cannot be told from those that were compared; each writer counts once. A small step back is none."""
    ranks = [Peer(tmp_path, rank) for rank in range(2)]
    for rank in ranks:
        rank.step(1, uneven(rank.rank, 10))
    first = compared(tmp_path, clock)
    own = OwnJournal(tmp_path, SIDECAR)
    own.append(first.requests)
    own.close()
    ranks[0].now_ns -= 3_600_000 * MS
    ranks[1].now_ns -= 60 * MS
    second = Watched(tmp_path, clock, replace(SIDECAR, writer="sidecar-0-2-b"))
    for number in (2, 3):
        for rank in ranks:
            rank.step(number, uneven(rank.rank, 10 * number))
        second.settle()
    writer = ranks[0].identity.writer
    lines = [f"the clock of {writer} was set back: its steps are not compared until it is past the last one that was"]
    assert (lines, 1) == (second.said, second.counts["clock_set_back"])


@pytest.mark.parametrize(
    ("first", "is_dead", "seconds", "derived"),
    [(0, False, 0, 1), (1, False, 0, 0), (1, False, 100, 1), (1, True, 0, 1)],
)
def test_rank_0_is_waited_for(
    tmp_path: Path, clock: FakeClock, first: int, is_dead: bool, seconds: float, derived: int
) -> None:
    """In a directory that nodes share its journal may be seen late, and two sidecars would say different things."""
    for rank in (first, first + 1):
        Peer(tmp_path, rank, 3, identity=DEAD if is_dead else ALIVE).step(1, uneven(rank - first))
    watched = Watched(tmp_path, clock)
    watched.settle()
    watched.look(seconds)
    watched.settle()
    assert derived == watched.counts.get("derived", 0)
