"""Tests of the time that a device takes, which nothing ever waits for."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.probes import deferred, device_time
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.device_time import DeviceClock
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.records import PendingAttributes
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from tests.fake_cuda import Event, FakeCuda, Stream
from tests.fixtures import Recording


@pytest.fixture
def cuda(recording: Recording) -> FakeCuda:
    """A device that is in use while a recording is on."""
    cuda = FakeCuda()
    probes.device = DeviceInUse(cuda)
    return cuda


def test_a_stage_says_how_long_the_device_took(recording: Recording, cuda: FakeCuda) -> None:
    """However far the host has run ahead; each stage has its own time, also where the device was late for its begin."""
    probes.read_memory = lambda: (b"", None)
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            cuda.launch(0.5)
            recording.tick(1)
        with otel_rl.stage("train.backward"):
            cuda.launch(1.0)
            recording.tick(1)
        cuda.wait(2.0)
        with otel_rl.stage("log"):
            pass
    spans = recording.spans()
    times = {name: span.attributes.get(v.DEVICE_TIME) for name, span in spans.items() if not name.startswith("rl.rank")}
    assert {
        v.SETUP: None, v.LOOP: None, v.FORWARD: 0.5, v.BACKWARD: 1.0, v.LOG: 0.0, v.TEARDOWN: None,
    } == times  # fmt: skip


def test_stages_inside_have_times_of_their_own(recording: Recording, cuda: FakeCuda) -> None:
    """As has the one around them, of the same work; a step's root and container wait for no device."""
    seen = []
    with otel_rl.step(1):
        with otel_rl.stage("train"):
            with otel_rl.stage("train.forward"):
                cuda.launch(1.0)
            with otel_rl.stage("mine"):
                cuda.launch(2.0)
            cuda.launch(0.5)
        with otel_rl.stage("idle"):
            cuda.launch(4.0)
        assert tracing.container is not None
        seen.append(type(tracing.container.attributes))
        cuda.wait(9.0)
    spans = recording.spans()
    times = {name: span.attributes[v.DEVICE_TIME] for name, span in spans.items() if v.DEVICE_TIME in span.attributes}
    assert {v.TRAIN: 3.5, v.FORWARD: 1.0, "mine": 2.0} == times
    assert [dict] == seen


def test_a_span_waits_for_its_device(recording: Recording, cuda: FakeCuda) -> None:
    """Journaled as open meanwhile; the next stage of any kind finds that the device was there."""
    seen = []
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            cuda.launch(1.0)
        for seconds in (0.5, 0.5):
            recording.flusher._cycles()
            seen.append(v.FORWARD in {span.name for span in recording.run().spans()})
            cuda.wait(seconds)
            with otel_rl.stage("log"):
                pass
        recording.flusher._cycles()
        seen.append(v.FORWARD in {span.name for span in recording.run().spans()})
    assert [False, False, True] == seen


def test_the_time_is_counted_in_metrics(recording: Recording, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every stage, sampled or not."""
    monkeypatch.setattr(state, "sampled", lambda trace_id: False)
    with otel_rl.step(1):
        for kind in ("old", "ref"):
            with otel_rl.stage("logprob", **{"logprob.kind": kind}):
                cuda.launch(0.5)
        cuda.wait(2.0)
    found = recording.stop().points(v.DEVICE_DURATION)
    points = {
        (point.attributes[v.LOGPROB_KIND], point.attributes[v.STAGE]): (point.count, point.sum) for point in found
    }
    assert {("old", v.LOGPROB): (1, 0.5), ("ref", v.LOGPROB): (1, 0.5)} == points


def test_the_metric_is_told_by_the_stage(recording: Recording, cuda: FakeCuda) -> None:
    """One of the vocabulary by its name there, as its duration is, and one of the user's own by that."""
    with otel_rl.step(1):
        for name, more in ((f"{v.REWARD} accuracy", {"reward.function": "accuracy"}), ("reward", {}), ("mine", {})):
            with otel_rl.stage(name, **more):
                cuda.launch(0.5)
        cuda.wait(9.0)
    found = recording.stop().points(v.DEVICE_DURATION)
    points = {tuple(sorted(point.attributes.items())): (point.count, point.sum) for point in found}
    function, reward = (v.REWARD_FUNCTION, "accuracy"), (v.STAGE, v.REWARD)
    assert {(function, reward): (1, 0.5), ((v.STAGE, "mine"),): (1, 0.5), (reward,): (1, 0.5)} == points


def one(cuda: FakeCuda, clock: DeviceClock, seconds: float, name: str = v.FORWARD) -> Stage:
    """Do one stage's work on a device."""
    stage = Stage(name, {"rl.batch_size": 1})
    clock.begin(stage)
    cuda.launch(seconds)
    clock.end(stage)
    return stage


def test_times_stay_exact_late_in_a_run() -> None:
    """A float32 of milliseconds is 250 us coarse after an hour; the two events of a stage are near each other."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    cuda.wait(30 * 3600.0)
    stage = one(cuda, clock, 0.001)
    cuda.wait(1.0)
    clock.resolve()
    assert pytest.approx(0.001, rel=1e-6) == stage.attributes[v.DEVICE_TIME]


def test_attributes_are_late_until_the_device_was_there() -> None:
    """They are completed in order, and never by waiting."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stages = [one(cuda, clock, 1.0) for _ in range(3)]
    seen = []
    for _ in range(4):
        clock.resolve()
        seen.append([stage.attributes.is_timed for stage in stages])
        cuda.wait(1.0)
    assert [[False] * 3, [True, False, False], [True, True, False], [True] * 3] == seen
    assert all(type(stage.attributes) is PendingAttributes and stage.attributes.is_complete for stage in stages)
    assert {"rl.batch_size": 1, v.DEVICE_TIME: 1.0} == stages[0].attributes
    assert not clock.is_pending


def test_numbers_of_a_framework_are_waited_for_too() -> None:
    """One stage may lack both."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    late = PendingAttributes({"rl.mode": "train"})
    begun = clock.start()
    assert begun is not None
    assert late is clock.stop(begun, late)
    cuda.wait(1.0)
    clock.resolve()
    assert (False, True, 0.0) == (late.is_complete, late.is_timed, late[v.DEVICE_TIME])


def test_events_are_used_again() -> None:
    """To make one is what costs."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    for _ in range(100):
        one(cuda, clock, 1.0)
        cuda.wait(2.0)
    assert 4 >= len(cuda.events)
    assert all(event.enable_timing for event in cuda.events)


def test_each_device_has_events_of_its_own() -> None:
    """One that was recorded on a device can be recorded on no other; a stage ends on the stream it began on."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    streams = [Stream(cuda, 0), Stream(cuda, 1)]
    times = []
    for stream in streams * 2:
        cuda.stream = stream
        stage = Stage(v.FORWARD)
        clock.begin(stage)
        cuda.launch(1.0)
        cuda.stream = streams[0]
        clock.end(stage)
        cuda.wait(2.0)
        clock.resolve()
        times.append(stage.attributes and stage.attributes.get(v.DEVICE_TIME))
    assert [1.0] * 4 == times


@pytest.mark.parametrize("captures", [(True, True), (True, False), (False, True)])
def test_nothing_is_recorded_or_asked_during_a_capture(captures: tuple[bool, bool]) -> None:
    """An event would be recorded again with every replay, and a query breaks the capture."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    waiting = one(cuda, clock, 1.0)
    cuda.wait(2.0)
    stage = Stage(v.FORWARD)
    for mark, cuda.capturing in zip((clock.begin, clock.end), captures, strict=True):
        mark(stage)  # the stand-in raises where it is asked during a capture
    assert None is stage.attributes
    cuda.capturing = False
    clock.resolve()
    assert 1.0 == waiting.attributes[v.DEVICE_TIME]


def test_the_oldest_goes_without_its_time_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that never answers holds no more; they are counted."""
    monkeypatch.setattr(device_time, "LIMIT", 2)
    state.dropped.clear()
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stages = [one(cuda, clock, 1.0) for _ in range(5)]
    assert [True, True, True, False, False] == [stage.attributes.is_timed for stage in stages]
    assert 3 == state.dropped["metrics", "device_too_late"]
    cuda.wait(9.0)
    clock.resolve()
    assert [None, None, None, 1.0, 1.0] == [stage.attributes.get(v.DEVICE_TIME) for stage in stages]
    state.dropped.clear()


def test_another_thread_never_asks() -> None:
    """Its query could break a capture that this one has begun."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stage = one(cuda, clock, 1.0)
    cuda.wait(2.0)
    other = threading.Thread(target=clock.resolve)
    other.start()
    other.join()
    assert not stage.attributes.is_timed
    clock.resolve()
    assert stage.attributes.is_timed


@pytest.mark.parametrize("lost_at", ["begin", "end", "later"])
def test_a_device_that_is_lost_stops_its_clock(lost_at: str) -> None:
    """No error reaches the host, the spans that wait go without, and it is counted once."""
    state.dropped.clear()
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stages = [one(cuda, clock, 1.0), Stage(v.BACKWARD)]
    cuda.lost = lost_at == "begin"
    clock.begin(stages[1])
    cuda.lost = lost_at in ("begin", "end")
    clock.end(stages[1])
    cuda.lost = True
    clock.resolve()
    one(cuda, clock, 1.0)
    assert all(stage.attributes is None or stage.attributes.is_timed for stage in stages)
    assert {("metrics", "device_failed"): 1} == dict(state.dropped)
    assert not clock.is_pending
    state.dropped.clear()


def test_a_rollout_is_timed_only_where_it_generates_here() -> None:
    """Where a server generates, the stream of this process is idle."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stages = [Stage(v.SAMPLE), Stage(v.SAMPLE)]
    for stage in stages:
        clock.begin(stage)
        if stage is stages[1]:
            clock.generates()
        cuda.launch(1.0)
        clock.end(stage)
    cuda.wait(5.0)
    clock.resolve()
    assert (None, 1.0) == (stages[0].attributes, stages[1].attributes[v.DEVICE_TIME])


def test_what_generates_inside_a_rollout_is_the_rollouts() -> None:
    """Also below a stage of the user's own; outside of a rollout nothing is kept of it."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    rollout, own, evaluation = Stage(v.SAMPLE), Stage("mine"), Stage(v.EVALUATE)
    for stage in (rollout, own):
        clock.begin(stage)
    clock.generates()
    cuda.launch(1.0)
    for stage in (own, rollout):
        clock.end(stage)
    clock.begin(evaluation)
    clock.generates()
    clock.end(evaluation)
    cuda.wait(5.0)
    clock.resolve()
    assert [1.0, 1.0] == [(stage.attributes or {})[v.DEVICE_TIME] for stage in (rollout, own)]
    assert set() == clock._here


def test_a_device_that_is_lost_while_it_tells_a_time_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ten seconds: what was about to be told goes without its time, and so does what followed."""
    cuda = FakeCuda()
    clock, stages = DeviceClock(cuda), [Stage(v.FORWARD), Stage(v.BACKWARD)]
    for stage in stages:
        clock.begin(stage)
        clock.end(stage)

    def lost(first: Event, last: Event) -> float:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(Event, "elapsed_time", lost)
    clock.resolve()
    assert [True, True] == [
        stage.attributes.is_timed for stage in stages if isinstance(stage.attributes, PendingAttributes)
    ]
    state.dropped.clear()


def test_what_another_thread_generates_is_not_this_ones_rollout() -> None:
    """This one waits for a server."""
    cuda = FakeCuda()
    clock, rollout = DeviceClock(cuda), Stage(v.SAMPLE)
    clock.begin(rollout)
    other = threading.Thread(target=clock.generates)
    other.start()
    other.join()
    clock.end(rollout)
    assert None is rollout.attributes


def test_a_device_that_the_process_does_not_use_is_not_asked_for_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch may make a context there for the answer."""
    cuda: Any = FakeCuda()
    cuda.is_current_stream_capturing = Mock(return_value=True)
    monkeypatch.setattr(probes, "has_context", lambda index: index == 3)
    found = [device_time.is_capturing(cuda)]
    cuda.stream.device = "cuda:3"
    found.append(device_time.is_capturing(cuda))
    assert ([False, True], 1) == (found, cuda.is_current_stream_capturing.call_count)


WORK = (
    v.LOGPROB, v.VALUE, v.ADVANTAGE, v.TRAIN, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER, v.REWARD,
    f"{v.REWARD} accuracy", v.SYNC, v.EVALUATE, v.CHECKPOINT, v.CHECKPOINT_STAGING, v.SAMPLE_PROCESS, v.LOG,
    "rl.mine", "mine",
)  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_every_stage_is_timed(name: str) -> None:
    """Of integrations and of users: any may give the device work."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stage = one(cuda, clock, 1.0, name)
    cuda.wait(2.0)
    clock.resolve()
    assert {"rl.batch_size": 1, v.DEVICE_TIME: 1.0} == stage.attributes


@pytest.mark.parametrize("name", [v.LOOP, f"{v.RANK_SPAN} 3", v.SETUP, v.TEARDOWN, v.IDLE, v.COMM, v.SAMPLE_DECODE])
def test_what_is_no_work_is_not_timed(name: str) -> None:
    """Nor are collectives, of which there are hundreds."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stage = one(cuda, clock, 1.0, name)
    assert (dict, []) == (type(stage.attributes), cuda.events)


def test_beside_the_thread_of_the_steps_nothing_is_timed(recording: Recording, cuda: FakeCuda) -> None:
    """What it asks could break a capture of that one's, and on the stream lies that one's work."""

    def beside() -> None:
        for _ in range(2):
            with otel_rl.stage("reward"):
                pass

    with otel_rl.step(1):
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
    assert (None, 0, 0) == (recording.spans()[v.REWARD].attributes.get(v.DEVICE_TIME), cuda.records, cuda.queries)


@pytest.mark.parametrize("ask", ["begin", "end", "drain"])
def test_what_another_thread_timed_before_the_first_step_is_not_asked_for(
    recording: Recording, cuda: FakeCuda, ask: str
) -> None:
    """The thread of the steps may capture by now, which only that one knows; such stages go without, at once."""
    mine = threading.get_ident()
    cuda.is_current_stream_capturing = lambda: cuda.capturing and threading.get_ident() == mine
    assert probes.device is not None
    clock = probes.device.clock
    begun, asked = threading.Event(), threading.Event()
    stages, open_one = [], Stage(v.REWARD)

    def beside() -> None:
        stages.extend(one(cuda, clock, 1.0, v.REWARD) for _ in range(2))
        clock.begin(open_one)
        begun.set()
        asked.wait(60)
        if ask == "begin":
            clock.begin(Stage(v.REWARD))
        elif ask == "end":
            clock.end(open_one)
        else:
            deferred.drain(0.0)
        stages.append(clock.is_pending)

    thread = threading.Thread(target=beside)
    thread.start()
    begun.wait(60)
    with otel_rl.step(1):
        cuda.wait(9.0)
        counts = cuda.records, cuda.queries
        cuda.capturing = True  # the stand-in raises where it is asked or recorded meanwhile
        asked.set()
        thread.join()
        cuda.capturing = False
        assert counts == (cuda.records, cuda.queries)
    first, second, is_waiting = stages
    assert [(True, {"rl.batch_size": 1})] * 2 == [
        (late.is_timed, late) for late in (first.attributes, second.attributes)
    ]
    assert (False, None) == (is_waiting, open_one.attributes)


def test_a_loop_on_another_thread_than_set_up_is_timed(recording: Recording, cuda: FakeCuda) -> None:
    """As are stages of its thread from before the first step; what the other one had not asked for by then is not."""
    with otel_rl.stage("load"):
        cuda.launch(1.0)

    def train() -> None:
        with otel_rl.stage("prepare"):
            cuda.launch(0.5)
        with otel_rl.step(1):
            with otel_rl.stage("work"):
                cuda.launch(2.0)
            cuda.wait(9.0)
            with otel_rl.stage("log"):
                pass

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    with otel_rl.stage("save"):
        pass
    spans = recording.spans()
    times = {name: spans[name].attributes.get(v.DEVICE_TIME) for name in ("load", "prepare", "work", "save")}
    assert {"load": None, "prepare": 0.5, "work": 2.0, "save": None} == times


def test_a_stage_that_another_thread_ends_has_no_time() -> None:
    """So an asynchronous checkpoint ends: whose work lies on the stream until then, or a graph, nobody knows."""
    cuda = FakeCuda()
    clock = DeviceClock(cuda)
    stage = Stage(v.CHECKPOINT, {v.CHECKPOINT_ASYNC: True})
    clock.begin(stage)
    other = threading.Thread(target=clock.end, args=(stage,))
    other.start()
    other.join()
    assert ({v.CHECKPOINT_ASYNC: True}, dict, 1) == (stage.attributes, type(stage.attributes), cuda.records)


@pytest.mark.gpu
def test_a_real_device_is_timed() -> None:
    """A product of matrices takes longer than none, and the host does not wait for it."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no device")
    state.dropped.clear()
    matrix = torch.ones(4096, 4096, device="cuda")
    matrix @ matrix  # the first product loads a library
    torch.cuda.synchronize()
    clock = DeviceClock(torch.cuda)
    times = []
    for products in (1, 20):
        stage = Stage(v.FORWARD)
        clock.begin(stage)
        for _ in range(products):
            matrix @ matrix
        clock.end(stage)
        torch.cuda.synchronize()
        clock.resolve()
        times.append(stage.attributes[v.DEVICE_TIME])
    assert 0 < times[0] < times[1]
    assert {} == dict(state.dropped)
