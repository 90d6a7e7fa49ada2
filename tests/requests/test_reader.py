"""Finished requests while they wait for the flusher: none is lost or read twice, whatever a reader does."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary
from otel_rl.process.state import state
from otel_rl.requests.queue import Request, record_requests
from otel_rl.trace.current import CURRENT
from tests.fixtures import Recording
from tests.noted import parts
from tests.requests.test_queue import bad, counted, given, request


def waiting() -> list[tuple[Any, ...]]:
    """Take the requests away from the flusher: parent and arguments of each."""
    found = [one[1:] for one in parts(state.queue.finished)]
    assert len(found) == state.queue.finished.number()
    state.queue.finished.clear()
    return found


def test_what_waits_is_reader_parent_and_arguments(recording: Recording) -> None:
    """Nothing is read where it is recorded; without a current stage it belongs to the step."""
    with otel_rl.step(1) as step:
        with otel_rl.stage("sample") as stage:
            record_requests(given, 3)
        record_requests(given, 4, 5, parent=stage)
        token = CURRENT.set(None)
        record_requests(given, 6)
        CURRENT.reset(token)
        assert [(stage, [3]), (stage, [4, 5]), (step, [6])] == waiting()


def test_nothing_is_recorded_while_recording_is_off(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does anything fail."""
    with otel_rl.step(1):
        with monkeypatch.context() as off:
            off.setattr(state, "on", False)
            record_requests(given, 1)
        assert [] == waiting()


def test_threads_and_the_flusher_share_the_queue(recording: Recording) -> None:
    """Nothing is lost or read twice while all of them are at it."""
    read: list[int] = []

    def reader(row: Request, number: int) -> Iterable[Request]:
        read.append(number)
        return (row,)

    def work(first: int) -> None:
        for number in range(first, first + 3_000):
            record_requests(reader, row, number)

    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        recording.tick(20)
        row = request(recording, id="")
        threads = [threading.Thread(target=work, args=(3_000 * number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert otel_rl.flush()
        record_requests(given, [row], parent=stage)
    run = recording.stop()
    assert (list(range(9_000)), {"stop": 9_001}) == (sorted(read), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))


@pytest.mark.parametrize("seed", range(4))
def test_each_is_read_once_in_its_turn(recording: Recording, seed: int) -> None:
    """Reader, parent and the number of arguments change at random."""
    draw = random.Random(seed)
    read: list[tuple[Any, ...]] = []

    def lists(*arguments: Any) -> Iterable[Request]:
        read.append(arguments)
        return [rows[one] for one in arguments]

    def lazily(*arguments: Any) -> Iterable[Request]:
        read.append(arguments)
        return (rows[one] for one in arguments)

    expected: list[tuple[Any, ...]] = []
    parents: Counter[int] = Counter()
    with otel_rl.step(1) as step, otel_rl.stage("sample") as stage:
        recording.tick(20)
        rows = [request(recording, number) for number in range(30)]
        left = iter(range(30))
        while arguments := tuple(islice(left, draw.choice((0, 1, 1, 1, 2)))) or tuple(islice(left, 1)):
            parent = draw.choice((step, stage))
            record_requests(draw.choice((lists, lazily)), *arguments, parent=parent)
            expected.append(arguments)
            parents[parent.span_id] += len(arguments)
    run = recording.stop()
    assert ({"stop": 30}, {}, expected) == (counted(run, vocabulary.REQUESTS, vocabulary.FINISH), bad(run), read)
    found = [span.parent_id for span in run.spans((vocabulary.SUBMISSION,)) if span.attributes]
    assert {span_id.to_bytes(8, "big"): number for span_id, number in parents.items()} == Counter(found)


@pytest.mark.parametrize(
    ("limit", "most", "kept"), [("requests.queue.MOST_WAITING", 8, 3), ("process.state.QUEUE_LIMIT", 0, 0)]
)
def test_too_many_are_dropped_and_counted(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, kept: int
) -> None:
    """By the length of the queue, or by their own; what waits is not disturbed."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        with monkeypatch.context() as limited:
            limited.setattr(f"otel_rl.{limit}", most)
            for number in range(5):
                record_requests(given, [request(recording, number)])
        assert ({("traces", "queue_full"): 5 - kept}, 4 * kept) == (state.dropped, len(state.queue.finished))
        record_requests(given, [request(recording, 5)])
    assert {"stop": kept + 1} == counted(recording.stop(), vocabulary.REQUESTS, vocabulary.FINISH)


def test_what_waits_is_nothing_to_the_garbage_collector(recording: Recording) -> None:
    """It would walk over 100,000 of them again and again."""
    with otel_rl.step(1):
        record_requests(given, "r0", 0)
        before = len(gc.get_objects())
        for number in range(1_000):
            record_requests(given, f"r{number}", number)
        made = len(gc.get_objects()) - before
        state.queue.finished.clear()
    assert made < 100


def test_the_flusher_may_come_while_one_is_added(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read all the same, and once."""

    class Between(int):
        def __lt__(self, other: int) -> bool:
            assert otel_rl.flush()
            return super().__lt__(other)

    monkeypatch.setattr("otel_rl.requests.queue.MOST_WAITING", Between(1_000))
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        for number in range(4):
            record_requests(given, [request(recording, number)])
    run = recording.stop()
    assert ({"stop": 4}, {}) == (counted(run, vocabulary.REQUESTS, vocabulary.FINISH), bad(run))


def test_a_fork_leaves_what_waits_to_the_parent(recording: Recording) -> None:
    """The child begins with none, and has its own read."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        record_requests(given, [request(recording, 1)])
        child = os.fork()
        if not child:
            record_requests(given, [request(recording, 2)])
            otel_rl.uninstrument()
            os._exit(0)
        os.waitpid(child, 0)
        record_requests(given, [request(recording, 3)])
    assert 3 == sum(point.value for point in recording.stop().last_points(vocabulary.REQUESTS))


@pytest.mark.guarded
def test_a_reader_that_fails_takes_no_other_with_it(recording: Recording) -> None:
    """After it and before it, wherever it fails; what it gave before counts."""

    def failing(row: Request, error: BaseException, how: str) -> Iterable[Request]:
        if how == "early":
            raise error
        return (row if one else row.nothing for one in (1, 0))  # type: ignore[attr-defined]

    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        record_requests(given, [request(recording, 0)])
        for number, error in enumerate((ValueError(), StopIteration(), MemoryError())):
            record_requests(failing, request(recording, 1), error, "early")
            record_requests(given, [request(recording, 2 + number)])
        record_requests(failing, request(recording, 5), ValueError(), "late")
        record_requests(given, [request(recording, 6)])
    run = recording.stop()
    assert ({"unreadable": 4}, {"stop": 6}) == (bad(run), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))
