"""Tests of the state of a process: its queue, its reset, a fork."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path

import pytest

import otel_rl
from otel_rl import vocabulary
from otel_rl.config import Config
from otel_rl.process import state as runtime
from otel_rl.process.identity import identifying
from otel_rl.process.state import Runtime, state
from otel_rl.records import Count, Deferred, Log, Point
from otel_rl.requests.queue import EngineLoad
from otel_rl.trace import stage
from otel_rl.trace.training import training
from tests.fixtures import Recording, in_child


def test_a_full_queue_drops_and_counts(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing blocks and nothing grows; the count is in the metrics."""
    for module in (runtime, stage):
        monkeypatch.setattr(module, "QUEUE_LIMIT", 20)
    with otel_rl.step(1):
        assert otel_rl.flush()
        for i in range(25):
            with otel_rl.stage("tool", number=i):
                pass
        assert (20, {("traces", "queue_full"): 6}) == (len(state.queue), state.dropped)  # the line of a step waits, too
        assert otel_rl.flush()
    run = recording.stop()
    (dropped,) = run.last_points(vocabulary.SELF_DROPPED)
    assert (6, {vocabulary.REASON: "queue_full", vocabulary.SIGNAL: "traces"}) == (dropped.value, dropped.attributes)
    assert list(range(19)) == sorted(s.attributes["rl.number"] for s in run.spans(None) if s.name == "tool")


def test_what_a_full_queue_drops_is_counted_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points are no spans; the load of an engine is points, too."""
    monkeypatch.setattr(runtime, "QUEUE_LIMIT", 0)
    ours = Runtime()
    load = EngineLoad("vllm", "0", 5, 1, 2, None)
    for record in (Point("a", 1, 5), Count("b", 1), Deferred(list, ()), load, Log("c", 5, {}), stage.Stage("d")):
        assert not ours.add(record)
    signals = {"metrics": 4, "logs": 1, "traces": 1}
    assert {(signal, "queue_full"): number for signal, number in signals.items()} == ours.dropped


def test_the_first_record_wakes_the_flusher_once() -> None:
    """A process that records nothing has no thread."""
    woken = []
    ours = Runtime()
    ours.start(Config(), lambda: woken.append(1))
    assert [] == woken
    ours.add("a")
    ours.add("b")
    assert ([1], ["a", "b"]) == (woken, list(ours.queue))


@pytest.mark.guarded
def test_a_flusher_that_cannot_start_is_survived() -> None:
    """No threads left: what is recorded waits."""

    def fail() -> None:
        raise RuntimeError("can't start new thread")

    ours = Runtime()
    ours.start(Config(), fail)
    ours.add("a")
    assert ["a"] == list(ours.queue)


def test_a_reset_forgets_everything(recording: Recording) -> None:
    """Also what integrations remember, and when the process began: that is what the next recording's set-up ends."""
    training.skipped = 1
    assert recording.flusher.stop(60)
    kept = dict(vars(state))
    state.reset()
    fresh = Runtime(started_ns=0)
    same = {"clock", "comm", "training", "wake"}
    assert {k: v for k, v in vars(fresh).items() if k not in same} == {
        k: v for k, v in vars(state).items() if k not in same
    }
    assert 0 == training.skipped
    vars(state).update(kept)  # the recording's end takes back what is not in it


@pytest.mark.parametrize(
    ("sampler", "ratio", "expected"),
    [("always_on", 0.0, 3), ("always_off", 1.0, 0), ("traceidratio", 1.0, 3), ("traceidratio", 0.0, 0)],
)
def test_sampling_goes_by_the_trace_id(sampler: str, ratio: float, expected: int) -> None:
    """The extremes are exact."""
    ours = Runtime(config=Config(sampler=sampler, sampler_ratio=ratio))
    assert expected == sum(ours.sampled(trace_id) for trace_id in (0, (1 << 64) - 1, (1 << 128) - 1))


def test_the_state_is_pickled_by_name() -> None:
    """A function of ours that somebody sends elsewhere meets that process's own state."""
    assert pickle.loads(pickle.dumps(state)) is state


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_journal_of_its_own(recording: Recording) -> None:
    """Below the same step; what the parent had queued is written once, by the parent."""

    def work() -> None:
        with otel_rl.stage("in child"):
            pass
        otel_rl.uninstrument()

    with otel_rl.step(1):
        with otel_rl.stage("before"):
            pass
        in_child(work)
        with otel_rl.stage("after"):
            pass
    run = recording.stop()
    names: dict[int, list[str]] = {}
    for span in run.spans():
        names.setdefault(span.journal.identity.pid, []).append(span.name)
    mine = names.pop(os.getpid())
    assert [["in child"]] == list(names.values())
    assert (1, 1, 0) == (mine.count("before"), mine.count("after"), mine.count("in child"))
    stage = {span.name: span for span in run.spans()}
    assert stage["before"].parent_id == stage["in child"].parent_id
    assert stage["before"].span_id != stage["in child"].span_id
    assert [] == run.damage


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_between_two_steps_makes_no_set_up_of_its_own(recording: Recording) -> None:
    """DataLoader workers of the second epoch: they belong to the step that was left."""

    def work() -> None:
        with otel_rl.stage("in child"):
            pass
        otel_rl.uninstrument()

    with otel_rl.step(1) as container:
        pass
    in_child(work)
    assert container is not None
    run = recording.stop()
    (span,) = (span for span in run.spans() if span.name == "in child")
    assert container.span_id.to_bytes(8, "big") == span.parent_id
    assert 1 == sum(span.name == "rl.setup" for span in run.spans())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_begins_with_the_fork(stubbed: Recording) -> None:
    """As a process of a notebook's launcher, which inherits the notebook's modules and not its age."""

    def work() -> None:
        stubbed.tick(20)
        otel_rl.instrument([])
        stubbed.tick(3)
        with otel_rl.step(1):
            pass
        otel_rl.uninstrument()

    state.started_ns = stubbed.clock.ns
    stubbed.tick(3_600_000)
    in_child(work)
    lengths = {span.name: (span.end_ns - span.start_ns) / 1e6 for span in stubbed.run().spans()}
    assert 23 == lengths["rl.setup"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_identifies_waits_for_nobody(recording: Recording, tmp_path: Path) -> None:
    """The thread that holds the lock is not there in the child."""
    recording.start()
    held, done = threading.Event(), threading.Event()
    answer = tmp_path / "answer"

    def hold() -> None:
        with identifying.lock:
            held.set()
            done.wait(60)

    def work() -> None:
        if identifying.lock.acquire(blocking=False):
            answer.touch()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    in_child(work)
    done.set()
    holder.join()
    assert answer.exists()
