"""A device that torch finds: when it is met, what is timed without a framework, what a fork does to it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import otel_rl
from otel_rl import comm_buffers
from otel_rl import vocabulary as v
from otel_rl.current import CURRENT
from otel_rl.integrations import torch as integration
from otel_rl.patching import Attachment
from otel_rl.probes.device import DeviceInUse
from otel_rl.probes.memory import Device, use_memory_reader
from otel_rl.runtime import after_fork_in_child, state
from tests.fake_cuda import FakeCuda
from tests.fixtures import Recording, described

torch = pytest.importorskip("torch")


def using_device(recording: Recording) -> FakeCuda:
    """Record with torch alone, in a process that uses a device."""
    otel_rl.uninstrument()
    recording.start("torch")
    cuda = FakeCuda()
    state.device, state.has_context = DeviceInUse(cuda), None
    use_memory_reader(lambda index: Device(0, 0, 0, 0))
    recording.tick(20)
    return cuda


@pytest.fixture
def has_context(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The devices that this process uses, as the driver knows them."""
    used = {0}
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", used.__contains__, raising=False)
    return used


@pytest.mark.usefixtures("has_context")
@pytest.mark.parametrize("kind", ["cuda", "npu"])
def test_a_device_is_known_once_it_is_in_use(recording: Recording, kind: str) -> None:
    """Of CUDA, ROCm and Ascend alike; stages before that say nothing of it."""
    cuda = FakeCuda()
    cuda.initialized = False
    compiler = SimpleNamespace(is_compiling=lambda: False)
    attachments = {one.module: one for one in integration.ATTACHMENTS if isinstance(one, Attachment)}
    module: Any = SimpleNamespace(compiler=compiler, **{kind: cuda})
    leave = attachments["torch" if kind == "cuda" else "torch_npu"].attach(module)
    with otel_rl.step(1):
        recording.tick(20)
        before = state.device
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
    assert None is state.read_device


@pytest.mark.usefixtures("has_context")
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
    leave = integration._know_device("cuda", cuda)
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
    cuda.stream.device = "cuda:3"
    cuda.current_device = lambda: 3 if threading.current_thread() is threading.main_thread() else 0
    cuda.mem_get_info = asked = Mock(return_value=(6, 10))
    cuda.memory.memory_stats_as_nested_dict = lambda index: cuda.stats if index == 3 else {}
    has_context ^= {0, 3}
    leave = integration._know_device("cuda", cuda)
    recording.tick(11)
    checkpoint = otel_rl.stage("checkpoint").__enter__()
    assert checkpoint.token is not None
    CURRENT.reset(checkpoint.token)
    checkpoint.token = None

    def save() -> None:
        with otel_rl.stage("save"):
            comm_buffers.begin()
            comm_buffers.end()
        checkpoint.end()

    records = cuda.records
    worker = threading.Thread(target=save)
    worker.start()
    worker.join()
    assert (1, 1, 0) == (records, cuda.records, asked.call_count)
    found = recording.spans()
    leave()
    assert {} == found["save"].attributes
    told = [found[v.CHECKPOINT].attributes[key] for key in (v.ALLOCATED_START, v.ALLOCATED_END)]
    assert [1, 1] == told


def test_a_short_stage_says_whose_clock_it_is(recording: Recording) -> None:
    """To launch takes hardly any time: no verdict may take it for the work."""
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
    device = state.device = DeviceInUse(FakeCuda())
    from otel_rl import runtime

    after_fork_in_child()
    kept = runtime._of_parents.pop()
    assert (None, device) == (state.device, kept[1])


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
    state.read_memory = state.memory_reader.read
    assert expected == train()
    spans = recording.spans()
    times = [spans[name].attributes.get(v.DEVICE_TIME, 0.0) for name in (v.FORWARD, v.BACKWARD, v.OPTIMIZER)]
    assert all(seconds > 0 for seconds in times)
    assert spans[v.BACKWARD].attributes[v.ALLOCATED_END] > 0
