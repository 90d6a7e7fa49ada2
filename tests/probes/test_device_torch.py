"""A device that torch finds: when it is met, what is timed without a framework, what a fork does to it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.comm import buffers
from otel_rl.hooks import Attachment
from otel_rl.integrations.torch import hooks
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import Device, of_parents, probes, use_memory_reader
from otel_rl.process.state import after_fork_in_child
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording, described, in_child

torch = pytest.importorskip("torch")


def using_device(recording: Recording) -> FakeCuda:
    """Record with torch alone, in a process that uses a device."""
    otel_rl.uninstrument()
    recording.start("torch")
    cuda = FakeCuda()
    probes.device, probes.has_context = DeviceInUse(cuda), None
    use_memory_reader(lambda index: Device(0, 0, 0, 0))
    recording.tick(20)
    return cuda


@pytest.fixture
def has_context(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The devices that this process uses, as the driver knows them."""
    used = {0}
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", used.__contains__, raising=False)
    return used


@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_a_device_is_known_once_it_is_in_use(recording: Recording, has_context: set[int], kind: str) -> None:
    """Of CUDA, ROCm and Ascend alike, which torch's look for contexts does not know; stages before it say nothing."""
    if kind == "npu":
        has_context.clear()
    cuda = FakeCuda()
    cuda.initialized = False
    compiler = SimpleNamespace(is_compiling=lambda: False)
    attachments = {one.module: one for one in hooks.INTEGRATION.attachments if isinstance(one, Attachment)}
    module: Any = SimpleNamespace(compiler=compiler, **{kind: cuda})
    leave = attachments["torch" if kind == "cuda" else "torch_npu"].attach(module)
    with otel_rl.step(1):
        recording.tick(20)
        before = probes.device
        with otel_rl.stage("reward"):
            cuda.initialized = True
            recording.tick(20)
        recording.tick(20)
        with otel_rl.stage("train.forward"):
            cuda.launch(0.5)
            recording.tick(20)
        cuda.wait(1.0)
    spans = recording.spans()
    assert None is before
    forward = spans[v.FORWARD].attributes
    told = (v.DEVICE_TIME, v.CLOCK, v.ALLOCATED_END, v.RESERVED_PEAK)
    assert [0.5, "host", 1, 3] == [forward[key] for key in told]
    leave()
    assert None is probes.read_device


def test_ascend_that_torch_loads_itself_stays() -> None:
    """At the end of its own import: so it is there before torch is."""
    npu, cuda = FakeCuda(), FakeCuda()
    cuda.initialized = False
    leave = [hooks._know_device("npu", npu), hooks._know_device("cuda", cuda)]
    assert probes.read_device is not None
    found = probes.read_device(None)
    for one in leave:
        one()
    probes.device = None
    assert Device(1, 2, 3, 4) == found
    assert None is probes.read_device


def test_two_threads_meet_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would forget what has begun on it."""
    made, goes_on = [], threading.Barrier(2, timeout=60)

    def meet(device: Any) -> DeviceInUse:
        made.append(DeviceInUse(device))
        time.sleep(0.05)  # the other thread has looked by then
        return made[-1]

    def is_initialized() -> bool:
        goes_on.wait()  # neither has met it yet
        return True

    cuda: Any = FakeCuda()
    cuda.is_initialized = is_initialized
    monkeypatch.setattr(hooks, "DeviceInUse", meet)
    leave = hooks._know_device("cuda", cuda)
    threads = [threading.Thread(target=probes.read_memory) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leave()
    assert made == [probes.device]
    probes.device = None


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize(("idle_ms", "expected"), [(1, (None, 1, False)), (11, (0, 2, True))])
def test_the_first_use_of_a_device_is_of_the_stage_that_saw_it_unused(
    recording: Recording, has_context: set[int], index: int, idle_ms: float, expected: tuple[int | None, int, bool]
) -> None:
    """A stage that began when the device was not looked at says nothing of its begin: it may have been in use."""
    cuda = FakeCuda()
    cuda.initialized = False
    cuda.stream.device = f"cuda:{index}"
    has_context.add(index)
    leave = hooks._know_device("cuda", cuda)
    with otel_rl.step(1):
        recording.tick(11)
        with otel_rl.stage("before"):
            pass
        recording.tick(idle_ms)
        with otel_rl.stage("load"):
            cuda.initialized = True
            recording.tick(20)
    found = recording.spans()["load"].attributes
    keys = v.ALLOCATED_START, v.ALLOCATED_PEAK, v.ALLOCATED_PEAK_EXACT
    leave()
    assert expected == tuple(found.get(key) for key in keys)


def test_a_device_that_the_process_does_not_use_is_left_alone(recording: Recording, has_context: set[int]) -> None:
    """A thread begins on device 0: to record or to ask there would take some of its memory for good."""
    cuda: Any = FakeCuda()
    capturing: list[int] = []
    cuda.stream.device = "cuda:3"
    cuda.current_device = lambda: 3 if threading.current_thread() is threading.main_thread() else 0
    cuda.mem_get_info = asked = Mock(return_value=(6, 10))
    cuda.memory.memory_stats_as_nested_dict = lambda index: cuda.stats  # torch tells 0 of an unused one, not nothing
    cuda.is_current_stream_capturing = lambda: capturing.append(cuda.current_device()) or False
    has_context ^= {0, 3}
    leave = hooks._know_device("cuda", cuda)
    recording.tick(11)
    checkpoint = otel_rl.stage("checkpoint").__enter__()
    checkpoint.leave()

    def save() -> None:
        with otel_rl.stage("save"):
            buffers.begin()
            buffers.end()
        checkpoint.end()

    records = cuda.records
    worker = threading.Thread(target=save)
    worker.start()
    worker.join()
    assert (1, 1, 0) == (records, cuda.records, asked.call_count)
    assert 0 not in capturing
    found = recording.spans()
    leave()
    assert {} == found["save"].attributes
    told = [found[v.CHECKPOINT].attributes[key] for key in (v.ALLOCATED_START, v.ALLOCATED_END)]
    assert [1, 1] == told


def test_a_short_stage_says_whose_clock_it_is(recording: Recording) -> None:
    """To launch takes hardly any time: no finding may take it for the work."""
    cuda = using_device(recording)
    with otel_rl.step(1):
        for name in ("sample", "train.forward"):
            with otel_rl.stage(name):
                cuda.launch(0.25)
                recording.tick(0.2)
        recording.tick(1.5)
        with otel_rl.stage("train.forward"):
            recording.tick(1.5)
        cuda.wait(1.0)
    found = [span for span in recording.stop().spans(None) if span.name in (v.FORWARD, v.SAMPLE)]
    found.sort(key=lambda span: span.start_ns)
    told = [(span.attributes.get(v.CLOCK), v.ALLOCATED_END in span.attributes) for span in found]
    assert [(None, True), ("host", True), ("host", True)] == told


def test_a_stage_whose_memory_is_not_read_says_whose_clock_it_is(recording: Recording) -> None:
    """There are too many; the device times them all the same."""
    cuda = using_device(recording)
    probes.device._due_ns = 1 << 62
    with otel_rl.step(1):
        with otel_rl.stage("train.forward"):
            cuda.launch(0.5)
        cuda.wait(1.0)
    assert {v.CLOCK: "host", v.DEVICE_TIME: 0.5} == recording.spans()[v.FORWARD].attributes


def test_what_the_device_is_asked_is_in_no_stage(recording: Recording) -> None:
    """Neither at its begin nor at its end."""
    using_device(recording)

    def read(index: int | None) -> Device:
        recording.tick(5)
        return Device(0, 0, 0, 0)

    probes.read_device = read
    with otel_rl.step(1), otel_rl.stage("mine"):
        recording.tick(2)
    found = recording.spans()["mine"]
    assert 2_000_000 == found.end_ns - found.start_ns


def test_an_exit_may_end_a_stage_while_the_device_is_asked(recording: Recording) -> None:
    """On its own thread; the stage lasted no less than nothing."""
    using_device(recording)
    stage = otel_rl.stage("mine")

    def read(index: int | None) -> Device:
        if stage.began and not stage.ended:
            stage.close(recording.clock.ns)
            recording.tick(1)
        return Device(0, 0, 0, 0)

    probes.read_device = read
    with otel_rl.step(1):
        stage.__enter__()
    assert stage.ended == stage.began


def test_a_flush_asks_the_device(recording: Recording) -> None:
    """For what it has ended; it does not wait for it."""
    cuda = using_device(recording)
    with otel_rl.step(1):
        for seconds in (0.5, 2.0):
            with otel_rl.stage("train.forward"):
                cuda.launch(seconds)
            recording.tick(1)
        cuda.wait(1.0)
        assert otel_rl.flush()
    found = [span for span in recording.run().spans(None) if span.name == v.FORWARD]
    found.sort(key=lambda span: span.start_ns)
    assert [0.5, None] == [span.attributes.get(v.DEVICE_TIME) for span in found]


def _train() -> None:
    """Forward and backward in a worker, whose step is open in the parent alone."""
    live = iter([10, 50, 50, 10] * 2)
    probes.device, probes.has_context = DeviceInUse(FakeCuda()), None
    use_memory_reader(lambda index: Device(next(live), 90, 100, 100))
    for _ in range(2):
        for name in ("train.forward", "train.backward"):
            with otel_rl.stage(name):
                pass
            otel_rl.flush()


@pytest.mark.medium
def test_a_worker_has_activations(recording: Recording) -> None:
    """However often its flusher comes between a forward and its backward."""
    with otel_rl.step(1):
        in_child(_train)
    told = [span.attributes.get(v.ACTIVATION_PEAK) for span in recording.stop().spans(None) if span.name == v.BACKWARD]
    assert [40, 40] == told


def test_an_optimizer_without_a_framework_is_timed(recording: Recording) -> None:
    """By torch's own hooks around its step."""
    cuda = using_device(recording)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: cuda.launch(0.25))
    weight.grad = torch.ones(1)
    with otel_rl.step(1):
        optimizer.step()
        cuda.wait(1.0)
    found = recording.spans()[v.OPTIMIZER].attributes
    assert {v.CLOCK: "host", v.DEVICE_TIME: 0.25} == described(found)


@pytest.mark.usefixtures("recording")
def test_a_fork_leaves_the_device_to_the_parent() -> None:
    """Its events are kept, because to free them would use the parent's device, and never asked."""
    device = probes.device = DeviceInUse(FakeCuda())
    after_fork_in_child()
    assert (None, True) == (probes.device, device in of_parents)
    of_parents.remove(device)


@pytest.mark.gpu
def test_a_real_step(recording: Recording) -> None:
    """Forward, backward and optimizer are timed, the memory is told, and the results are those without us."""
    if not torch.cuda.is_available():
        pytest.skip("no device")

    def train() -> list[float]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(1024, 1024, device="cuda")
        optimizer = torch.optim.AdamW(layer.parameters())
        losses = []
        for number in range(1, 4):
            with otel_rl.step(number):
                with otel_rl.stage("train.forward"):
                    loss = layer(torch.ones(64, 1024, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    otel_rl.uninstrument()
    expected = train()
    recording.start("torch")
    probes.read_memory = probes.reader.read
    assert expected == train()
    spans = recording.spans()
    times = [spans[name].attributes.get(v.DEVICE_TIME, 0.0) for name in (v.FORWARD, v.BACKWARD, v.OPTIMIZER)]
    assert all(seconds > 0 for seconds in times)
    assert spans[v.BACKWARD].attributes[v.ALLOCATED_END] > 0
