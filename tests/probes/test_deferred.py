"""Tests of numbers that are read without waiting for their device."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import otel_rl
from otel_rl.probes import deferred
from otel_rl.probes.deferred import deferral
from otel_rl.probes.memory import probes
from otel_rl.process import state as runtime
from otel_rl.process.state import state
from tests.fixtures import Recording

torch = pytest.importorskip("torch")


class Event:
    """An event of a device, over when the test says so."""

    all: ClassVar[list[Event]] = []

    def __init__(self) -> None:
        self.over = False
        self.all.append(self)

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.over


class OnDevice:
    """A tensor that stands in for one of a device."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.device = torch.device("meta")

    def detach(self) -> Any:
        return torch.tensor(self.value)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A device named meta, with events and host memory that need no device."""
    module = SimpleNamespace(Event=Event, current_stream="stream of {}".format)
    monkeypatch.setattr(torch, "meta", module, raising=False)
    empty = torch.empty

    def unpinned(*args: Any, pin_memory: bool, **kwargs: Any) -> Any:
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", unpinned)
    Event.all = []
    deferral.pending.clear()
    yield module
    deferral.pending.clear()


def use(seen: list[list[float]]) -> Any:
    """Keep the numbers."""
    return lambda values: seen.append(values) or ()


def served() -> None:
    """Do the flusher's part."""
    while state.queue:
        later = state.queue.popleft()
        list(later.function(*later.arguments))


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that no flusher serves."""
    monkeypatch.setattr(state, "queue", deque())
    monkeypatch.setattr(state, "awake", True)


@pytest.mark.usefixtures("queue")
def test_tensors_of_the_host_are_summed_by_the_flusher() -> None:
    """Of any type, and large ones."""
    seen: list[list[float]] = []
    tensors = [torch.tensor(1.5), torch.tensor(True), torch.tensor([3]), torch.ones(300, 200, dtype=torch.bool)]
    assert deferred.read(tensors, use(seen))
    assert [] == seen
    served()
    assert [[1.5, 1.0, 3.0, 60_000.0]] == seen


@pytest.mark.usefixtures("queue")
def test_tensors_of_the_host_stay_as_they_are() -> None:
    """Their owner may resize them afterwards, which ``Tensor.numpy`` would forbid; a graph is no matter."""
    seen: list[list[float]] = []
    mask = torch.ones(2, 3)
    weight = torch.ones(4, requires_grad=True)
    assert deferred.read([mask, weight], use(seen))
    served()
    mask.resize_(64)
    assert [[6.0, 4.0]] == seen


@pytest.mark.medium
def test_to_sum_a_large_tensor_starts_no_thread() -> None:
    """In the flusher: the threads of torch belong to training."""
    code = """
import os, threading, torch
from otel_rl.probes.deferred import _sum
torch.set_num_threads(4)
values = torch.ones(1024, 1024).bool()
sums = []
counts = []
def work():
    counts.append(len(os.listdir("/proc/self/task")))
    sums.append(_sum(values))
    counts.append(len(os.listdir("/proc/self/task")))
thread = threading.Thread(target=work)
thread.start()
thread.join()
assert [1048576.0] == sums, sums
assert counts[0] == counts[1], counts
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("queue")
def test_a_full_queue_leaves_numbers_where_they_are(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has room; nothing of them is counted as dropped."""
    seen: list[list[float]] = []
    assert deferred.read([OnDevice(1.0)], use(seen))
    Event.all[0].over = True
    with monkeypatch.context() as full:
        for module in (deferred, runtime):
            full.setattr(module, "QUEUE_LIMIT", 0)
        deferred.resolve()
    assert (1, 0, {}) == (len(deferral.pending), len(state.queue), dict(state.dropped))
    deferred.resolve()
    served()
    assert [[1.0]] == seen


@pytest.mark.usefixtures("queue")
def test_numbers_of_a_device_come_when_it_is_done(device: Any) -> None:
    """In the order in which they were asked for, and never by waiting."""
    seen: list[list[float]] = []
    for value in (1.0, 2.0, 3.0):
        assert deferred.read([OnDevice(value), OnDevice(-value)], use(seen))
    for over, expected in (((), []), ((1,), []), ((0,), [[1.0, -1.0], [2.0, -2.0]])):
        for index in over:
            Event.all[index].over = True
        deferred.resolve()
        served()
        assert expected == seen


@pytest.mark.usefixtures("queue")
def test_what_follows_comes_behind_the_numbers_that_were_asked_for(device: Any) -> None:
    """Of the host and of a device; those that are asked for later it does not wait for."""
    seen: list[list[float]] = []
    assert deferred.read([torch.tensor(1.0)], use(seen))
    deferred.follow(use(seen))
    served()
    assert [[1.0], []] == seen
    assert deferred.read([OnDevice(2.0)], use(seen))
    deferred.follow(use(seen))
    assert deferred.read([OnDevice(3.0)], use(seen))
    deferred.resolve()
    served()
    assert [[1.0], []] == seen
    Event.all[0].over = True
    deferred.resolve()
    served()
    assert [[1.0], [], [2.0], []] == seen


def test_a_device_that_never_answers_holds_only_so_many(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after is dropped and counted."""
    monkeypatch.setattr(deferred, "LIMIT", 2)
    before = state.dropped["metrics", "device_too_late"]
    for _ in range(5):
        deferred.read([OnDevice(1.0)], use([]))
    assert (2, 3) == (len(deferral.pending), state.dropped["metrics", "device_too_late"] - before)
    state.dropped.clear()


def test_nothing_is_read_while_a_graph_is_captured(device: Any) -> None:
    """The copy would run again with every replay."""
    device.is_current_stream_capturing = lambda: True
    assert not deferred.read([OnDevice(1.0)], use([]))
    assert 0 == len(deferral.pending)


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes where it is slept through, and nowhere else."""
    passed = [0.0]
    monkeypatch.setattr(deferred, "sleep", lambda seconds: passed.append(passed[-1] + seconds))
    monkeypatch.setattr(deferred, "monotonic", lambda: passed[-1])


@pytest.mark.usefixtures("queue", "asleep")
def test_the_end_of_the_program_waits_for_the_device(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was on its way is handed over, and a device that never answers does not hold up the end."""
    seen: list[list[float]] = []
    for value in (1.0, 2.0):
        assert deferred.read([OnDevice(value)], use(seen))
    asked = iter((False, False, True))
    monkeypatch.setattr(Event.all[0], "query", lambda: next(asked, True))
    deferred.drain(0.05)
    served()
    assert ([[1.0]], 1) == (seen, len(deferral.pending))


@pytest.mark.usefixtures("queue")
def test_two_threads_hand_over_only_what_is_copied(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask a device lets go of the interpreter, and the other thread may come to the same answer."""
    seen: list[list[float]] = []
    for value in (1.0, 2.0):
        assert deferred.read([OnDevice(value)], use(seen))
    both = threading.Barrier(2)

    def query() -> bool:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return True

    monkeypatch.setattr(Event.all[0], "query", query)
    threads = [threading.Thread(target=deferred.resolve) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served()
    assert ([[1.0]], 1) == (seen, len(deferral.pending))
    Event.all[1].over = True
    deferred.resolve()
    served()
    assert [[1.0], [2.0]] == seen


@pytest.mark.usefixtures("queue")
def test_a_device_that_fails_is_asked_again(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers may come yet, on whatever thread."""
    seen: list[list[float]] = []
    assert deferred.read([OnDevice(1.0)], use(seen))
    with monkeypatch.context() as failing:
        failing.setattr(Event.all[0], "query", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            deferred.resolve()
    Event.all[0].over = True
    deferred.resolve()
    served()
    assert [[1.0]] == seen


@pytest.mark.usefixtures("queue")
def test_numbers_go_to_memory_of_the_host(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the default device is: only memory of the host can be pinned."""
    asked = []
    empty = torch.empty

    def noted(*args: Any, device: str = "default", **kwargs: Any) -> Any:
        asked.append(device)
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", noted)
    assert deferred.read([OnDevice(1.0)], use([]))
    assert ["cpu"] == asked


@pytest.mark.usefixtures("queue")
def test_a_copy_is_over_on_the_stream_that_copies(device: Any) -> None:
    """That of the device of what is copied (here of the stand-in's, the host), whichever is current."""
    assert deferred.read([OnDevice(1.0)], use([]))
    assert ["stream of cpu"] == [event.stream for event in Event.all]


@pytest.mark.usefixtures("queue")
def test_with_steps_only_their_thread_asks(device: Any, recording: Recording) -> None:
    """Another one's query would break a capture that it has begun, and cannot know of."""
    seen: list[list[float]] = []
    with otel_rl.step(1):
        assert deferred.read([OnDevice(1.0)], use(seen))
        Event.all[0].over = True
        other = threading.Thread(target=deferred.resolve)
        other.start()
        other.join()
        before = len(deferral.pending)
        deferred.resolve()
        assert (1, 0) == (before, len(deferral.pending))


@pytest.mark.usefixtures("queue")
def test_a_step_asks_for_what_has_come(device: Any, recording: Recording) -> None:
    """Where nothing else of ours does, as in a loop without a framework."""
    for number in range(deferred.LIMIT + 10):
        with otel_rl.step(number):
            assert deferred.read([OnDevice(1.0)], use([]))
            Event.all[-1].over = True


@pytest.mark.usefixtures("queue")
def test_a_distributed_tensor_is_left_alone() -> None:
    """To read one is a collective, in which the other ranks do not take part."""
    tensor = torch.tensor(1.0)
    tensor.placements = ()
    assert not deferred.read([tensor], use([]))
    assert 0 == len(state.queue)


@pytest.mark.usefixtures("queue")
def test_nothing_is_asked_while_a_graph_is_captured(device: Any) -> None:
    """A query breaks the capture; the numbers come after it."""
    seen: list[list[float]] = []
    assert deferred.read([OnDevice(1.0)], use(seen))
    Event.all[0].over = True
    device.is_current_stream_capturing = lambda: True
    deferred.resolve()
    served()
    device.is_current_stream_capturing = lambda: False
    before = list(seen)
    deferred.resolve()
    served()
    assert ([], [[1.0]]) == (before, seen)


@pytest.mark.usefixtures("queue", "asleep")
def test_the_end_of_the_program_waits_for_times_of_the_device_too() -> None:
    """As long as for its numbers, and no longer."""
    asked = iter((True, True, False))
    resolved = []

    class Clock:
        is_pending = property(lambda self: resolved[-1])

        def resolve(self) -> None:
            resolved.append(next(asked))

    probes.device = SimpleNamespace(clock=Clock())
    deferred.drain(5.0)
    probes.device = None
    assert [True, True, False] == resolved
