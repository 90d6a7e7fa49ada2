"""Finished requests while they wait for the flusher: none is lost or read twice, and few objects wait."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary
from otel_rl.process.state import state
from otel_rl.requests import queue
from otel_rl.requests.queue import MOST_PIECES, Request, note
from otel_rl.trace.current import CURRENT
from tests.fixtures import Recording
from tests.noted import parts
from tests.requests.test_queue import bad, counted, given, request

WAYS = [
    pytest.param(False, id="python"),
    pytest.param(True, id="C", marks=pytest.mark.skipif(queue.native is None, reason="no compiler")),
]


def way(*, is_native: bool, most: int = MOST_PIECES) -> Any:
    """Give ``note``, which lets so many pieces wait."""
    if not is_native:
        return queue._note
    return queue.native.noter(state, CURRENT, most, queue._note)  # type: ignore[union-attr]


class Between(int):
    """A limit at which the flusher comes, before what is compared with it is added."""

    def __gt__(self, other: int) -> bool:
        assert otel_rl.flush()
        return super().__gt__(other)


@pytest.mark.parametrize("is_native", WAYS)
def test_what_waits_is_one_list(recording: Recording, is_native: bool) -> None:
    """Reader, parent, number of arguments, arguments; queued once, and whole."""
    note = way(is_native=is_native)
    with otel_rl.step(1) as step:
        with otel_rl.stage("sample") as stage:
            note(given, 3)
            note(given)
        note(given, 4, 5, parent=stage)
        note(given, 6)
        expected = [(given, stage, [3]), (given, stage, []), (given, stage, [4, 5]), (given, step, [6])]
        assert expected == list(parts(state.noted))
        assert [state.noted] == [record for record in state.queue if isinstance(record, list)]
        state.noted.clear()


def test_what_waits_is_nothing_to_the_garbage_collector(recording: Recording) -> None:
    """It would walk over 100,000 of them again and again."""
    with otel_rl.step(1):
        note(given, "r0", 0)
        before = len(gc.get_objects())
        for number in range(1_000):
            note(given, f"r{number}", number)
        made = len(gc.get_objects()) - before
        state.noted.clear()
    assert made < 100


def test_the_flusher_may_come_while_one_is_added(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read all the same, and once; in C nobody can."""
    monkeypatch.setattr(queue, "MOST_PIECES", Between(queue.MOST_PIECES))
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        for number in range(4):
            queue._note(given, [request(recording, number)])
    run = recording.stop()
    assert ({"stop": 4}, {}) == (counted(run, vocabulary.REQUESTS, vocabulary.FINISH), bad(run))


def test_threads_and_the_flusher_share_it(recording: Recording) -> None:
    """Nothing is lost or read twice while all of them are at it."""
    read: list[int] = []

    def reader(row: Request, number: int) -> Iterable[Request]:
        read.append(number)
        return (row,)

    def work(first: int) -> None:
        for number in range(first, first + 3_000):
            note(reader, row, number)

    with otel_rl.step(1), otel_rl.stage("sample") as stage:
        recording.tick(20)
        row = request(recording, id="")
        threads = [threading.Thread(target=work, args=(3_000 * number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert otel_rl.flush()
        note(given, [row], parent=stage)
    run = recording.stop()
    assert (list(range(9_000)), {"stop": 9_001}) == (sorted(read), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))


@pytest.mark.parametrize("seed", range(8))
def test_each_is_read_once_whatever_lies_between(recording: Recording, seed: int) -> None:
    """Those of one reader and parent are read together: here both change at random, as the number of arguments does."""
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
            note(draw.choice((lists, lazily)), *arguments, parent=parent)
            expected.append(arguments)
            parents[parent.span_id] += len(arguments)
    run = recording.stop()
    assert ({"stop": 30}, {}, expected) == (counted(run, vocabulary.REQUESTS, vocabulary.FINISH), bad(run), read)
    found = [span.parent_id for span in run.spans((vocabulary.SUBMISSION,)) if span.attributes]
    assert {span_id.to_bytes(8, "big"): number for span_id, number in parents.items()} == Counter(found)


def test_a_long_row_of_them_is_read_in_parts(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, and each part is freed before the next one."""
    monkeypatch.setattr("otel_rl.requests.reader.PART", 10)
    lengths = []

    def reader(noted: list[Any], row: Request) -> Iterable[Request]:
        lengths.append(len(noted))
        return (row,)

    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        for number in range(7):
            note(reader, state.noted, request(recording, number))
        assert otel_rl.flush()
    assert [35, 35, 35, 20, 20, 20, 5] == lengths
    assert {"stop": 7} == counted(recording.stop(), vocabulary.REQUESTS, vocabulary.FINISH)


@pytest.mark.parametrize("is_native", WAYS)
@pytest.mark.parametrize("module", ["runtime", "requests"])
def test_too_many_are_dropped_and_counted(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, module: str, is_native: bool
) -> None:
    """By the length of the queue, or by their own; what waits is not disturbed."""
    note = way(is_native=is_native, most=12 if module == "requests" else MOST_PIECES)
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        if module == "requests":
            monkeypatch.setattr(queue, "MOST_PIECES", 12)
        else:
            monkeypatch.setattr(queue, "QUEUE_LIMIT", 0)
        for number in range(5):
            note(given, [request(recording, number)])
        monkeypatch.undo()
        kept = 3 if module == "requests" else 0
        assert ({("traces", "queue_full"): 5 - kept}, 4 * kept) == (state.dropped, len(state.noted))
        note(given, [request(recording, 5)])
    run = recording.stop()
    assert {"stop": kept + 1} == counted(run, vocabulary.REQUESTS, vocabulary.FINISH)


def test_a_fork_leaves_what_waits_to_the_parent(recording: Recording) -> None:
    """The child begins with none, and has its own read."""
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        note(given, [request(recording, 1)])
        child = os.fork()
        if not child:
            note(given, [request(recording, 2)])
            otel_rl.uninstrument()
            os._exit(0)
        os.waitpid(child, 0)
        note(given, [request(recording, 3)])
    assert 3 == sum(point.value for point in recording.stop().last_points(vocabulary.REQUESTS))


@pytest.mark.guarded
def test_a_reader_that_fails_takes_no_other_with_it(recording: Recording) -> None:
    """Behind it and before it, wherever it fails."""

    def failing(row: Request, error: BaseException, how: str) -> Iterable[Request]:
        if how == "early":
            raise error
        return (row if one else row.nothing for one in (1, 0))  # type: ignore[attr-defined]

    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        note(given, [request(recording, 0)])
        for number, error in enumerate((ValueError(), StopIteration(), MemoryError())):
            note(failing, request(recording, 1), error, "early")
            note(given, [request(recording, 2 + number)])
        note(failing, request(recording, 5), ValueError(), "late")
        note(given, [request(recording, 6)])
    run = recording.stop()
    assert ({"unreadable": 4}, {"stop": 6}) == (bad(run), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))


@pytest.mark.guarded
@pytest.mark.parametrize("fails", [False, True])
def test_a_reader_may_read_many_together(recording: Recording, fails: bool) -> None:
    """A run of the same reader and parent; one by one where that fails."""
    runs: list[list[Request]] = []

    def alone(row: Request) -> list[Request]:
        assert fails
        return [row]

    def together(rows: list[Request]) -> list[Request]:
        runs.append(rows)
        if fails:
            raise KeyError
        return rows

    alone.many = together  # type: ignore[attr-defined]
    rows = [request(recording, number) for number in range(4)]
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        note(alone, rows[0])
        note(alone, rows[1])
        note(given, [rows[2]])
        note(alone, rows[3])
    run = recording.stop()
    assert ({}, {"stop": 4}) == (bad(run), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))
    assert [rows[:2], rows[3:]] == runs


class Many:
    """A reader whose ``many`` is not what it should be."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, *rows: Request) -> Iterable[Request]:
        return rows

    @property
    def many(self) -> Any:
        if self.how == "no attribute":
            raise KeyError
        return self.late if self.how == "late" else lambda rows: 7

    def late(self, rows: list[Request]) -> Iterator[Request]:
        """Fail behind the first row."""
        yield rows[0]
        raise KeyError


@pytest.mark.guarded
@pytest.mark.parametrize("how", ["late", "no rows", "no attribute"])
def test_each_is_read_alone_where_many_cannot_be(recording: Recording, how: str) -> None:
    """However that fails: nothing is lost, and the flusher goes on."""
    reader = Many(how)
    with otel_rl.step(1), otel_rl.stage("sample"):
        recording.tick(20)
        for number in range(4):
            note(reader, request(recording, number))
    run = recording.stop()
    assert ({}, {"stop": 4}) == (bad(run), counted(run, vocabulary.REQUESTS, vocabulary.FINISH))


@pytest.mark.parametrize("is_native", WAYS)
def test_a_call_that_cannot_be_is_refused_as_any_function_does(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    """And nothing is added; while nothing is recorded, nothing is."""
    note = way(is_native=is_native)
    with otel_rl.step(1):
        for arguments, named in (((), {}), ((given,), {"nobody": 1})):
            with pytest.raises(TypeError):
                note(*arguments, **named)
        assert [] == state.noted
        with monkeypatch.context() as off:
            off.setattr(state, "on", False)
            note(given, 1)
        assert [] == state.noted


@pytest.mark.parametrize("is_native", WAYS)
def test_without_a_current_stage_they_belong_to_the_step(recording: Recording, is_native: bool) -> None:
    """As in a thread that has none."""
    note = way(is_native=is_native)
    with otel_rl.step(1) as step:
        note(given, 1)
        token = CURRENT.set(None)
        note(given, 2)
        CURRENT.reset(token)
        assert [(given, step, [1]), (given, step, [2])] == list(parts(state.noted))
        state.noted.clear()


@pytest.mark.parametrize("is_native", WAYS)
def test_without_memory_nothing_is_added_in_part(recording: Recording, is_native: bool) -> None:
    """Wherever it ends: what waits behind would be read as something else."""
    memory = pytest.importorskip("_testcapi")
    note = way(is_native=is_native)
    with otel_rl.step(1):
        for most in range(1, 12):
            note(given, 1)
            size = len(state.noted)
            arguments = list(range(1000, 1000 + 64))
            memory.set_nomemory(most, most + 1)
            try:
                note(given, *arguments)
            except MemoryError:
                assert size == len(state.noted)
            finally:
                memory.remove_mem_hooks()
            state.noted.clear()


def test_another_thread_may_begin_the_list_that_was_found_empty(recording: Recording) -> None:
    """Nothing is full, so nothing is dropped; it may be queued twice, and is read once."""

    class Overtaken(type(state.noted)):  # type: ignore[misc]
        """Another thread adds to it right behind the look."""

        def __len__(self) -> int:
            found = super().__len__()
            if not found and not self.overtaken:
                self.overtaken = True
                note(given, "r1", 1)
            return found

        overtaken = False

    with otel_rl.step(1):
        state.noted = Overtaken()
        note(given, "r0", 0)
    assert {} == dict(state.dropped)
