"""Tests of what the stream of a stage waits for collectives, which nothing ever waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks import CollectiveHook
from otel_rl.hooks.collective import wrap_method
from otel_rl.hooks.hook import wrap
from otel_rl.probes import exposed
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import probes
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from tests.comm.test_collectives import ProcessGroup
from tests.fake_cuda import FakeCuda, Stream
from tests.fixtures import Recording

GROUP = ProcessGroup()
VALUE = np.zeros(4)


class Work:
    """What an asynchronous collective gives; to wait for it keeps the stream of the waiting thread so long."""

    def __init__(self, cuda: FakeCuda, seconds: float) -> None:
        self.cuda, self.seconds = cuda, seconds

    def wait(self) -> bool:
        """Let the current stream wait; the host goes on."""
        self.cuda.launch(self.seconds)
        return True

    wait = wrap(CollectiveHook(target="package:Work.wait"), wait)


@pytest.fixture
def cuda(recording: Recording) -> FakeCuda:
    """A device that is in use by two ranks while a recording is on."""
    cuda = FakeCuda()
    probes.device = DeviceInUse(cuda)
    state.identify(world_size=2)
    return cuda


@pytest.fixture
def reduce(cuda: FakeCuda) -> Callable[..., Any]:
    """A collective that the current stream waits for, or that gives its ``Work``."""

    def all_reduce(tensor: Any, group: Any = None, async_op: bool = False, *, seconds: float = 0.0) -> Work | None:
        if async_op:
            return Work(cuda, seconds)
        cuda.launch(seconds)
        return None

    return wrap(CollectiveHook(target="package:all_reduce"), all_reduce)


def told(recording: Recording, *names: str) -> list[tuple[float | None, float | None]]:
    """Give time of the device and exposed part of the stages of a name, in order."""
    found = [span for span in recording.run().spans(None) if span.name in names]
    found.sort(key=lambda span: span.start_ns)
    return [(span.attributes.get(v.DEVICE_TIME), span.attributes.get(v.COMM_EXPOSED)) for span in found]


def test_what_computing_does_not_hide_is_exposed(
    recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any]
) -> None:
    """All of a synchronous collective, and of an asynchronous one what is left when it is waited for."""
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            cuda.launch(1.0)
            reduce(VALUE, GROUP, seconds=0.5)
            work = reduce(VALUE, GROUP, True, seconds=0.25)
            cuda.launch(1.0)
            work.wait()
        recording.tick(1)
        with otel_rl.stage("train.backward"):
            cuda.launch(1.0)
        cuda.wait(9.0)
    recording.stop()
    assert [(2.75, 0.75), (1.0, None)] == told(recording, v.FORWARD, v.BACKWARD)
    (point,) = recording.run().points(v.COMM_EXPOSED_TIME)
    assert ({v.STAGE: v.FORWARD}, 1, 0.75) == (point.attributes, point.count, point.sum)


def test_a_wait_belongs_to_the_stage_it_is_in(recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any]) -> None:
    """The stage that only launched has no sum: it cannot know whether somebody waits where nobody sees it."""
    with otel_rl.step(1):
        with otel_rl.stage("train.backward"):
            reduce(VALUE, GROUP, seconds=0.5)
            work = reduce(VALUE, GROUP, True, seconds=0.25)
        recording.tick(1)
        with otel_rl.stage("train.optimizer"):
            work.wait()
        cuda.wait(9.0)
    recording.stop()
    assert [(0.5, None), (0.25, 0.25)] == told(recording, v.BACKWARD, v.OPTIMIZER)


def test_a_collective_on_another_stream_leaves_no_sum(
    recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any]
) -> None:
    """So FSDP calls its own; its stage's stream waits by an event, which nobody sees."""
    own, other = cuda.stream, Stream(cuda)
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            reduce(VALUE, GROUP, seconds=0.5)
            cuda.stream = other
            reduce(VALUE, GROUP, seconds=0.5)
            cuda.stream = own
            reduce(VALUE, GROUP, seconds=0.5)
        cuda.wait(9.0)
    recording.stop()
    assert [(1.0, None)] == told(recording, v.FORWARD)
    assert 4 == len(cuda.events)  # no more are recorded once one is lost: two of the wait, two of the stage


def test_where_collectives_are_hidden_there_is_no_sum(
    recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any]
) -> None:
    """DDP waits in C++, compiled regions by themselves."""
    with otel_rl.step(1):
        with otel_rl.stage("train.backward", **{"comm.hidden": True}):
            reduce(VALUE, GROUP, seconds=0.5)
        cuda.wait(9.0)
    recording.stop()
    assert [(0.5, None)] == told(recording, v.BACKWARD)


def test_autograd_s_own_thread_waits_in_the_backward(
    recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events are read with those of the stage, by the thread of the stage."""
    with otel_rl.step(1):
        with otel_rl.stage("train.backward") as stage:
            monkeypatch.setattr("otel_rl.comm.collectives._stage_of_bare_thread", lambda: stage)
            thread = threading.Thread(target=reduce, args=(VALUE, GROUP), kwargs={"seconds": 0.5})
            thread.start()
            thread.join()
        cuda.wait(9.0)
    recording.stop()
    assert [(0.5, 0.5)] == told(recording, v.BACKWARD)


def test_nothing_is_recorded_during_a_capture(cuda: FakeCuda, reduce: Callable[..., Any]) -> None:
    """The stand-in raises if it is; the stage has its time and no sum."""
    clock, stage = probes.device.clock, Stage(v.FORWARD)
    clock.begin(stage)
    tracing.container, before = stage, tracing.container
    cuda.capturing = True
    reduce(VALUE, GROUP, seconds=0.5)
    cuda.capturing = False
    reduce(VALUE, GROUP, seconds=0.5)
    tracing.container = before
    clock.end(stage)
    cuda.wait(9.0)
    clock.resolve()
    assert {v.DEVICE_TIME: 1.0} == stage.attributes


def forward(recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any], waits: int) -> int:
    """Do a stage with so many waits; gives how many events were recorded for them."""
    before = cuda.records
    with otel_rl.stage("train.forward"):
        for _ in range(waits):
            reduce(VALUE, GROUP, seconds=0.125)
        recording.tick(1)
    cuda.wait(100.0)
    return cuda.records - before - 2


def test_a_stage_with_many_waits_is_timed_now_and_then(
    recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any]
) -> None:
    """One in seven of its name; one with few is timed each time, and one with too many never."""
    with otel_rl.step(1):
        few = [forward(recording, cuda, reduce, exposed.FEW) for _ in range(3)]
        many = [forward(recording, cuda, reduce, exposed.FEW + 1) for _ in range(exposed.EVERY + 1)]
        left = [forward(recording, cuda, reduce, 1) for _ in range(exposed.EVERY - 1)]
        most = forward(recording, cuda, reduce, exposed.MOST_CALLS + 1)
    recording.stop()
    assert [2 * exposed.FEW] * 3 == few
    assert [2 * exposed.FEW + 2, *([0] * (exposed.EVERY - 1)), 2 * exposed.FEW + 2] == many
    assert ([0] * (exposed.EVERY - 1), 2 * exposed.MOST_CALLS) == (left, most)
    sums = [seconds for _, seconds in told(recording, v.FORWARD) if seconds is not None]
    assert [0.125 * exposed.FEW] * 3 + [0.125 * exposed.FEW + 0.125] * 2 == sums


def test_events_of_waits_are_used_again(recording: Recording, cuda: FakeCuda, reduce: Callable[..., Any]) -> None:
    """To make one is what costs."""
    with otel_rl.step(1):
        for _ in range(50):
            forward(recording, cuda, reduce, exposed.FEW)
    assert 4 * exposed.FEW + 4 >= len(cuda.events)


@pytest.mark.parametrize("lost_at", ["begin", "end"])
def test_a_device_that_is_lost_stops_no_collective(
    recording: Recording, cuda: FakeCuda, lost_at: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its result passes; the clock stops at the stage's end, and that is counted once."""

    def all_reduce(tensor: Any, group: Any = None) -> str:
        cuda.lost = True
        return "result"

    call = wrap(CollectiveHook(target="package:all_reduce"), all_reduce)
    with otel_rl.step(1), otel_rl.stage("train.forward"):
        cuda.lost = lost_at == "begin"
        assert "result" == call(VALUE, GROUP) == call(VALUE, GROUP)
    assert {("metrics", "device_failed"): 1} == dict(state.dropped)
    recording.stop()
    assert [(None, None)] == told(recording, v.FORWARD)
    assert [] == caplog.records


def test_the_error_of_a_collective_passes(recording: Recording, cuda: FakeCuda) -> None:
    """And its stage has no sum."""

    def all_reduce(tensor: Any, group: Any = None) -> None:
        cuda.launch(0.5)
        raise ValueError("of the host")

    call = wrap(CollectiveHook(target="package:all_reduce"), all_reduce)
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"), pytest.raises(ValueError, match="of the host"):
            call(VALUE, GROUP)
        cuda.wait(9.0)
    recording.stop()
    assert [(0.5, None)] == told(recording, v.FORWARD)


def test_the_error_of_a_wait_passes(recording: Recording, cuda: FakeCuda) -> None:
    """Likewise."""

    def wait(work: object) -> None:
        cuda.launch(0.5)
        raise ValueError("of the host")

    with otel_rl.step(1):
        with otel_rl.stage("train.forward"), pytest.raises(ValueError, match="of the host"):
            wrap_method("package:Work.wait", None, wait)(object())
        cuda.wait(9.0)
    recording.stop()
    assert [(0.5, None)] == told(recording, v.FORWARD)


def test_without_a_device_nothing_is_timed(recording: Recording) -> None:
    """Nor with one, outside of the stages that it is timed in."""
    state.identify(world_size=2)
    call = wrap(CollectiveHook(target="package:all_reduce"), lambda tensor, group=None: None)
    cuda = FakeCuda()
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            call(VALUE, GROUP)
        probes.device = DeviceInUse(cuda)
        with otel_rl.stage("idle"):
            call(VALUE, GROUP)
    recording.stop()
    assert [(None, None)] * 2 == told(recording, v.FORWARD, v.IDLE)
    assert [] == cuda.events


def test_torch_s_own_collectives_are_timed(recording: Recording, tmp_path: Path) -> None:
    """On one rank of gloo: synchronous, asynchronous, and a functional one that is waited for when it is used."""
    torch = pytest.importorskip("torch")
    dist, functional = torch.distributed, pytest.importorskip("torch.distributed._functional_collectives")
    otel_rl.uninstrument()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        recording.start("torch")
        cuda = FakeCuda()
        probes.device, probes.has_context = DeviceInUse(cuda), None
        state.identify(world_size=2)  # a single process records no collectives
        tensor, records = torch.ones(4), []
        with otel_rl.step(1):
            for reduce in (
                lambda: dist.all_reduce(tensor),
                lambda: dist.all_reduce(tensor, async_op=True).wait(),
                lambda: functional.all_reduce(tensor, "sum", dist.group.WORLD) + 1,
                lambda: dist.all_reduce(tensor, async_op=True),
            ):
                before = cuda.records
                with otel_rl.stage("train.forward"):
                    reduce()
                    recording.tick(1)
                records.append(cuda.records - before - 2)
        recording.stop()
        assert ([(0.0, 0.0)] * 3 + [(0.0, None)], [2, 2, 2, 0]) == (told(recording, v.FORWARD), records)
    finally:
        dist.destroy_process_group()


@pytest.mark.gpu
def test_a_real_device(recording: Recording, tmp_path: Path) -> None:
    """NCCL on one rank: a synchronous reduction is exposed, and one behind which much is computed hardly is."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("no device, or no NCCL")
    dist = torch.distributed
    otel_rl.uninstrument()
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        recording.start("torch")
        probes.device = DeviceInUse(torch.cuda)
        state.identify(world_size=2)  # a single process records no collectives
        large, matrix = torch.ones(1 << 28, device="cuda"), torch.ones(4096, 4096, device="cuda")
        for number in (1, 2):  # the first makes the communicator
            with otel_rl.step(number):
                with otel_rl.stage("train.forward"):
                    dist.all_reduce(large)
                with otel_rl.stage("train.backward"):
                    work = dist.all_reduce(large, async_op=True)
                    for _ in range(50):
                        matrix @ matrix
                    work.wait()
                torch.cuda.synchronize()
        recording.stop()
        alone, hidden = told(recording, v.FORWARD)[-1], told(recording, v.BACKWARD)[-1]
        assert 0 < alone[1] <= alone[0]
        assert 0 <= hidden[1] < hidden[0] / 2
        assert {} == dict(state.dropped)
    finally:
        dist.destroy_process_group()
