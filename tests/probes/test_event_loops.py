"""How late event loops are, with a clock that stands still, and once with a real one."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.probes import event_loops
from otel_rl.probes.event_loops import MOST_LOOPS, EventLoops
from tests.fixtures import WALL_NS, Clock, Recording

KINDS = ["asyncio", *(["uvloop"] if find_spec("uvloop") else [])]
Start = Callable[[], AbstractContextManager["Running"]]


class NotedLoop(asyncio.SelectorEventLoop):
    """A loop that counts what other threads ask of it."""

    asked = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:
        """Count a call."""
        self.asked += 1
        return super().call_soon_threadsafe(*args, **kwargs)


class Running:
    """An event loop that runs in a thread; one of its tasks waits for the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._end = asyncio.Event()
        self.start()

    def start(self) -> None:
        """Run it, also again."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.settle()

    def _run(self) -> None:
        with suppress(RuntimeError):  # it was told to stop before the task has ended
            self.loop.run_until_complete(self._end.wait())

    def settle(self) -> None:
        """Wait until it has done what it was asked for."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(60)

    def block(self, *, then_stop: bool = False) -> threading.Event:
        """Let it do nothing else until an event is set."""
        begun, gate = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            gate.wait(60)
            if then_stop:
                self.loop.stop()

        self.loop.call_soon_threadsafe(wait)
        assert begun.wait(60)
        return gate

    def stop(self) -> None:
        """End the run; the loop stays open."""
        self.loop.call_soon_threadsafe(self._end.set)
        self.join()

    def join(self) -> None:
        """Wait for the end of its run."""
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def running(loop: asyncio.AbstractEventLoop) -> Iterator[Running]:
    """Run a loop, and close it."""
    run = Running(loop)
    try:
        yield run
    finally:
        run.stop()
        loop.close()


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest) -> Start:
    """Loops of each kind that is installed."""
    if request.param == "asyncio":
        return lambda: running(asyncio.new_event_loop())
    import uvloop  # type: ignore[import-not-found, unused-ignore]

    return lambda: running(uvloop.new_event_loop())


def lag(loops: EventLoops) -> float | None:
    """Return how late they are, s."""
    found = loops.lag()
    return None if found is None else found[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that moves when it is told to."""
    clock = Clock()
    monkeypatch.setattr(event_loops, "monotonic_ns", clock)
    return clock


def test_a_loop_that_is_blocked_is_late_while_it_is(clock: Clock, start: Start) -> None:
    """By the age of the call that waits; afterwards it is as late as that call was, and then no more."""
    loops = EventLoops()
    with start() as run:
        assert None is lag(loops)  # it has asked
        run.settle()
        gate = run.block()
        found = []
        for ms in (1000, 1000, 10_000):
            clock.tick(ms)
            found.append(lag(loops))
        gate.set()
        run.settle()
        for _ in range(2):
            clock.tick(1000)
            found.append(lag(loops))
            run.settle()
    assert [0.0, 1.0, 11.0, 11.0, 0.0] == found


def test_the_latest_of_several_loops_counts(clock: Clock, start: Start) -> None:
    """Whichever it is."""
    loops = EventLoops()
    found = []
    with start() as one, start() as other, start() as third:
        runs = [one, other, third]
        for number in (0, 1):
            gate = runs[number].block()
            lag(loops)
            for run in runs[:number] + runs[number + 1 :]:
                run.settle()
            clock.tick(4000)
            found.append(lag(loops))
            gate.set()
            for run in runs:
                run.settle()
            clock.tick(1000)
            found.append(lag(loops))
            for run in runs:
                run.settle()
            clock.tick(1000)
    assert [4.0, 4.0, 4.0, 4.0] == found


def test_a_loop_is_asked_once_a_second_and_not_while_it_owes_an_answer(clock: Clock) -> None:
    """However often the flusher works."""
    loops, noted = EventLoops(), NotedLoop()
    with running(noted) as run:
        noted.asked = 0
        for _ in range(10):
            lag(loops)
            clock.tick(99)
        assert 1 == noted.asked
        run.settle()
        gate = run.block()
        for _ in range(5):
            clock.tick(1000)
            lag(loops)
        assert 4 == noted.asked  # twice by the test itself
        gate.set()


def test_a_loop_that_stands_still_between_two_runs_is_not_late(clock: Clock, start: Start) -> None:
    """A program may compute in the meantime."""
    loops = EventLoops()
    with start() as run:
        gate = run.block(then_stop=True)
        assert None is lag(loops)  # it has asked, and gets no answer before the loop stops
        gate.set()
        run.join()
        clock.tick(500)
        assert None is lag(loops)
        clock.tick(9000)
        assert None is lag(loops)
        run.start()
        assert None is lag(loops)
        clock.tick(1000)
        assert None is lag(loops)  # it has asked again
        run.settle()
        clock.tick(1000)
        assert 0.0 == lag(loops)


def test_a_loop_that_is_closed_is_forgotten(clock: Clock, start: Start) -> None:
    """Nothing keeps it alive."""
    loops = EventLoops()
    with start() as run:
        lag(loops)
        run.settle()
        clock.tick(1000)
        assert 0.0 == lag(loops)
    reference = weakref.ref(run.loop)
    del run
    gc.collect()
    assert None is reference()
    clock.tick(1000)
    assert None is lag(loops)


def test_few_loops_are_asked(clock: Clock) -> None:
    """However many there are."""
    loops = EventLoops()
    runs = [Running(NotedLoop()) for _ in range(MOST_LOOPS + 2)]
    before = [run.loop.asked for run in runs]  # type: ignore[attr-defined]
    lag(loops)
    asked = [run.loop.asked for run in runs]  # type: ignore[attr-defined]
    for run in runs:
        run.stop()
        run.loop.close()
    assert MOST_LOOPS == sum(asked) - sum(before)


def test_a_real_block_is_measured(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    """By the time that it takes, less what passes until the loop is asked."""
    monkeypatch.setattr(event_loops, "PERIOD_NS", 0)
    loops = EventLoops()
    with start() as run:
        lag(loops)
        run.settle()
        began = time.monotonic()
        run.loop.call_soon_threadsafe(time.sleep, 0.3)
        lag(loops)
        asked = time.monotonic()
        run.settle()
        settled = time.monotonic()
        late = lag(loops)
    assert late is not None
    assert 0.3 - (asked - began) <= late <= settled - began


def test_it_is_off_by_default(recording: Recording) -> None:
    """Nothing is asked of a loop."""
    with running(NotedLoop()) as run:
        before = run.loop.asked  # type: ignore[attr-defined]
        for _ in range(3):
            recording.tick(1000)
            assert otel_rl.flush()
        asked = run.loop.asked - before  # type: ignore[attr-defined]
    assert (0, []) == (asked, [*recording.stop().points(v.EVENT_LOOP_LAG.__eq__)])


def test_it_is_journaled_where_it_is_on(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """One point a second, of the time until which the call waited."""
    monkeypatch.setenv("OTEL_RL_EVENT_LOOP_LAG", "true")
    recording = stubbed.start()
    with running(asyncio.new_event_loop()) as run, otel_rl.step(1):
        assert otel_rl.flush()
        run.settle()
        gate = run.block()
        for ms in (1000, 3000):
            recording.tick(ms)
            assert otel_rl.flush()
        gate.set()
        run.settle()
        recording.tick(1000)
        assert otel_rl.flush()
    points = [*recording.stop().points(v.EVENT_LOOP_LAG.__eq__)]
    times = [round((point.time_ns - WALL_NS) / 1e9, 3) for point in points]
    assert ([0.0, 3.0, 3.0], [1.0, 5.0, 5.0]) == ([point.value for point in points], times)
