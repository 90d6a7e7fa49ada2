"""Threads that get in each other's way: what a slow machine does once in a million times, forced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import otel_rl
from otel_rl import entry, guard, ids
from otel_rl import vocabulary as v
from otel_rl.metrics import record as metrics
from otel_rl.probes.memory import UNREAD, probes
from otel_rl.process import state as runtime
from otel_rl.process.state import Runtime, state
from otel_rl.requests.memory import generation
from otel_rl.requests.queue import count_when_dropped
from otel_rl.trace import stage
from otel_rl.trace.attempt import know_attempt, report_alone
from otel_rl.trace.stage import Stage
from otel_rl.trace.tree import StepSpans
from tests.fixtures import Recording


def together(*works: Callable[[], object]) -> None:
    """Do several things at once, each in a thread of its own."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_set_up_is_journaled_below_the_attempt(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the flusher comes while the attempt becomes known."""
    with otel_rl.stage("load"):
        rank_1.tick(5)
    rank_1.flusher.flush(60)
    identify = StepSpans.identify

    def meanwhile(tree: StepSpans, attempt: str) -> None:
        rank_1.flusher.flush(0.5)
        identify(tree, attempt)

    monkeypatch.setattr(StepSpans, "identify", meanwhile)
    know_attempt("abc", "together")
    otel_rl.uninstrument()
    stage = {span.name: span for span in rank_1.run("together").spans()}
    assert {ids.trace_id("abc", v.SETUP, 0).to_bytes(16, "big")} == {span.trace_id for span in stage.values()}
    assert stage["load"].parent_id == stage["rl.rank 1"].span_id


def test_who_is_told_the_attempt_does_not_report_alone(rank_1: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the flusher has just given up waiting for it."""
    told = threading.Thread(target=know_attempt, args=("abc", "together"))
    found = Runtime.make_attempt

    def meanwhile(runtime: Runtime) -> Any:
        told.start()
        told.join(0.5)
        return found(runtime)

    monkeypatch.setattr(Runtime, "make_attempt", meanwhile)
    report_alone()
    told.join()
    assert "abc" == state.identity.attempt_id


def test_one_flusher_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whichever thread comes first; two would drain one queue into two journals."""
    started: list[int] = []
    both = threading.Barrier(2)
    one = Runtime(wake=lambda: started.append(1))

    def clock() -> int:
        both.wait(60)
        return 1

    monkeypatch.setattr(runtime, "monotonic_ns", clock)
    together(lambda: one.add(1), lambda: one.add(2))
    assert [1] == started


def test_who_is_late_for_a_recording_stops_no_other(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saw that recording is on, and adds its number when that is over: nobody is awake, though it says so."""
    stubbed.start()
    is_inside, is_over = threading.Event(), threading.Event()
    as_number = metrics.as_number

    def slow(value: Any) -> Any:
        is_inside.set()
        assert is_over.wait(60)
        return as_number(value)

    monkeypatch.setattr(metrics, "as_number", slow)
    late = threading.Thread(target=otel_rl.record, args=("late", 1))
    late.start()
    assert is_inside.wait(60)
    otel_rl.uninstrument()
    is_over.set()
    late.join()
    monkeypatch.setenv("OTEL_RL_RUN_ID", "second")
    stubbed.start()
    with otel_rl.step(1), otel_rl.stage("mine"):
        pass
    assert otel_rl.flush()
    otel_rl.uninstrument()
    run = stubbed.run("second")
    assert (["mine"], []) == ([span.name for span in run.spans() if span.name == "mine"], list(run.points("late")))


def test_a_stage_that_ends_at_the_exit_is_journaled_once(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is about to end it while the exit ends all that is open."""
    is_inside, goes_on = threading.Event(), threading.Event()

    def read() -> tuple[bytes, None]:
        if threading.current_thread() is worker:
            is_inside.set()
            assert goes_on.wait(60)
        return UNREAD

    def work() -> None:
        with Stage("mine"):
            monkeypatch.setattr(stage, "FRESH_NS", -1)
            monkeypatch.setattr(probes, "read_memory", read)

    worker = threading.Thread(target=work)
    worker.start()
    assert is_inside.wait(60)
    stop = recording.flusher.stop

    def stop_late(timeout_s: float, *, rests: bool) -> None:
        goes_on.set()
        worker.join()
        stop(timeout_s, rests=rests)

    monkeypatch.setattr(recording.flusher, "stop", stop_late)
    assert ["mine"] == [span.name for span in recording.stop().spans() if span.name == "mine"]


def test_a_stream_that_is_opened_during_the_exit_fails_nothing(recording: Recording) -> None:
    """A pool's thread asks an API while all of them are looked through."""

    class Owner:
        pass

    class Stream:
        def left(self) -> None:
            told.append(self)

    class Opening(type(generation.streams)):  # type: ignore[misc]
        def keyrefs(self) -> Any:
            found = super().keyrefs()
            owners.append(Owner())
            self[owners[-1]] = Stream()
            return found

    told: list[Stream] = []
    owners = [Owner() for _ in range(3)]
    generation.streams = Opening({owner: Stream() for owner in owners})
    entry._finish()
    assert ({}, 3) == (dict(guard.errors), len(told))
    generation.streams.clear()


def test_an_engine_that_is_dropped_waits_for_nobody(recording: Recording) -> None:
    """The collector drops it anywhere, under any lock of its thread; the flusher asks what was inside."""

    class Owner:
        pass

    class Engine:
        @property
        def unfinished(self) -> int:
            asked.append(threading.current_thread().name)
            return 2

    asked: list[str] = []
    owner = Owner()
    count_when_dropped(owner, Engine())
    with otel_rl.step(1):
        del owner
        assert [] == asked
    points = recording.stop().last_points(v.BAD_REQUESTS)
    assert [({v.REASON: "unfinished"}, 2)] == [
        ({v.REASON: point.attributes[v.REASON]}, point.value) for point in points
    ]
    assert threading.current_thread().name not in asked
