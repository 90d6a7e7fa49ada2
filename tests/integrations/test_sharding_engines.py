"""DeepSpeed and Megatron, on objects of their shape: neither is installed where these tests run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks import StageHook
from otel_rl.hooks.hook import wrap
from otel_rl.integrations import deepspeed, megatron
from otel_rl.trace.memory import tracing
from tests.fixtures import Recording, Tree


def hooked(integration: Any, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as the row of the integration does whose target has this name."""
    (hook,) = [hook for hook in integration.INTEGRATION.hooks if hook.target.endswith((f".{name}", f":{name}"))]
    return wrap(hook, function)  # type: ignore[no-any-return]


class Engine:
    """What DeepSpeed's engine has: an update at every second micro-batch, the second of which overflows."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.training, self.steps = recording, True, 0

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the step updates."""
        return self.steps % 2 == 1

    def was_step_applied(self) -> bool:
        """Whether it did."""
        return self.steps == 2

    def get_lr(self) -> list[float]:
        """Rates of the parameter groups."""
        return [0.25]

    def forward(self) -> None:
        """1 ms."""
        self.recording.tick(1)

    def backward(self, loss: Any) -> Any:
        """2 ms, and torch's own backward inside."""
        self.recording.tick(1)
        wrap(StageHook(target="torch.autograd:backward", stage=v.BACKWARD), lambda: self.recording.tick(1))()
        return loss

    def step(self) -> None:
        """1 ms."""
        self.recording.tick(1)
        self.steps += 1


def test_deepspeed_trains(recording: Recording) -> None:
    """Forward, backward and step of two updates; between micro-batches a step is none, and an overflow is skipped."""
    engine = Engine(recording)
    forward, backward, step = (
        hooked(deepspeed, name, getattr(Engine, name)) for name in ("forward", "backward", "step")
    )
    loss = object()
    with otel_rl.step(1):
        for _ in range(4):
            forward(engine)
            assert backward(engine, loss) is loss
            step(engine)
    run = recording.stop()
    spans = sorted((span for span in run.spans(None) if span.name.startswith("rl.train.")), key=lambda s: s.start_ns)
    assert [v.FORWARD, v.BACKWARD, v.FORWARD, v.BACKWARD, v.OPTIMIZER] * 2 == [span.name for span in spans]
    assert [False, True] == [span.attributes[v.OPTIMIZER_SKIPPED] for span in spans if span.name == v.OPTIMIZER]
    counts = {name: run.last_points(name)[0].value for name in (v.TRAIN_STEPS, v.TRAIN_STEPS_SKIPPED)}
    assert {v.TRAIN_STEPS: 1, v.TRAIN_STEPS_SKIPPED: 1} == counts
    assert {0.25} == {point.value for point in run.points(v.LEARNING_RATE)}


@pytest.mark.parametrize(
    ("around", "training", "expected"),
    [("sample", True, ()), ("logprob", True, ()), ("train.forward", True, ()), ("mine", False, ()),
     ("mine", True, (Tree(v.FORWARD, 0, 1),))],
)  # fmt: skip
def test_deepspeeds_forward_belongs_to_the_stage_around_it(
    recording: Recording, around: str, training: bool, expected: tuple[Tree, ...]
) -> None:
    """A framework's generation, log-probabilities and forward call it; an evaluation is none of training."""
    engine = Engine(recording)
    engine.training = training
    with otel_rl.step(1), otel_rl.stage(around):
        hooked(deepspeed, "forward", Engine.forward)(engine)
    step = next(tree for tree in recording.trees() if tree.name == "rl.loop").below[0]
    assert expected == step.below[0].below


@pytest.mark.parametrize(("name", "is_read"), [("save_checkpoint", None), ("load_checkpoint", True)])
def test_deepspeed_saves_and_loads(recording: Recording, name: str, is_read: bool | None) -> None:
    """Its checkpoint says whose it is, and whether it is read."""
    with otel_rl.step(1):
        assert hooked(deepspeed, name, lambda *_: True)(object(), "here")
    found = recording.spans()[v.CHECKPOINT].attributes
    assert ("deepspeed", is_read) == (found[v.CHECKPOINT_FORMAT], found.get(v.CHECKPOINT_LOAD))


def test_megatron_trains(recording: Recording) -> None:
    """Two micro-batches and an update; a chained optimizer steps others, which are part of it."""
    forward = hooked(megatron, "forward_step", lambda: recording.tick(1))
    backward = hooked(megatron, "backward_step", lambda: recording.tick(2))
    inner = hooked(megatron, "MixedPrecisionOptimizer.step", lambda: (True, 0.5, None))
    chained = hooked(megatron, "ChainedOptimizer.step", lambda: [inner(), inner()][0])
    with otel_rl.step(1):
        for _ in range(2):
            forward()
            backward()
        assert (True, 0.5, None) == chained()
    run = recording.stop()
    names = [span.name for span in sorted(run.spans(None), key=lambda span: (span.start_ns, span.span_id))]
    assert [v.FORWARD, v.BACKWARD] * 2 + [v.OPTIMIZER] == [name for name in names if name.startswith("rl.train.")]
    assert 1 == run.last_points(v.TRAIN_STEPS)[0].value


@pytest.mark.parametrize(
    ("around", "expected"),
    [(v.LOGPROB, [v.LOGPROB, v.LOGPROB_FORWARD]), (v.VALUE, [v.VALUE]), (v.TRAIN, [v.TRAIN, v.FORWARD])],
)
def test_megatrons_forward_has_the_name_of_what_it_is_for(
    around: str, expected: list[str], recording: Recording
) -> None:
    """Log-probabilities and values run through the same schedules as training."""
    forward = hooked(megatron, "forward_step", lambda: recording.tick(1))
    with otel_rl.step(1), otel_rl.stage(around.removeprefix("rl.")):
        forward()
    found = sorted(recording.stop().spans(None), key=lambda span: (span.start_ns, -span.end_ns, span.span_id))
    assert sorted(expected) == sorted(span.name for span in found if span.name.startswith(around))


def test_megatrons_timers_become_stages(recording: Recording) -> None:
    """By the drop-in: those that the vocabulary knows by its name, the others by Megatron's own, nested as they are."""
    config = SimpleNamespace(timers=megatron.Timers())
    with otel_rl.step(1):
        config.timers("forward-backward", log_level=1).start(barrier=True)
        for name in ("forward-compute", "backward-compute", "forward-send", "forward-recv"):
            config.timers(name, log_level=2).start()
            recording.tick(1)
            config.timers(name).stop()
        config.timers("forward-backward").stop()
        config.timers("forward-backward").stop()  # a second time does nothing
        config.timers("batch-generator").start()
        config.timers("batch-generator").start()
        recording.tick(1)
        config.timers("batch-generator").stop()
        config.timers("never started").stop()
        config.timers("batch-generator").reset()
    step = next(tree for tree in recording.trees() if tree.name == "rl.loop").below[0]
    inside = (Tree(v.FORWARD, 0, 1), Tree(v.BACKWARD, 1, 2), Tree("forward-send", 2, 3), Tree(v.IDLE, 3, 4))
    assert (Tree("forward-backward", 0, 4, inside), Tree(v.IDLE, 4, 5)) == step.below
    assert {} == tracing.open


class Communicator:
    """What Megatron's communicator of a pipeline has: all that it does goes through one method."""

    def __init__(self, recording: Recording, timers: megatron.Timers) -> None:
        self.recording, self.timers = recording, timers

    def _communicate(self, *, recv_prev: bool, recv_next: bool, wait_on_reqs: bool = True) -> tuple[Any, ...]:
        self.recording.tick(2)
        return recv_prev, recv_next, wait_on_reqs

    def recv_forward(self) -> Any:
        """Receive from the previous rank."""
        self.timers("forward-recv", log_level=2).start()
        received = self._communicate(recv_prev=True, recv_next=False)
        self.timers("forward-recv").stop()
        return received

    def send_forward(self) -> Any:
        """Send to the next one."""
        return self._communicate(recv_prev=False, recv_next=False)

    def send_backward_recv_backward(self, overlap: bool) -> Any:
        """Send to the previous rank and receive from the next one."""
        return self._communicate(recv_prev=False, recv_next=True, wait_on_reqs=not overlap)


def test_megatrons_pipeline_waits_for_a_neighbour(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it receives and waits, once, with and without the drop-in; what it sends or waits for later is no wait."""
    (hook,) = [hook for hook in megatron.INTEGRATION.hooks if hook.target.endswith("P2PCommunicator._communicate")]
    monkeypatch.setattr(Communicator, "_communicate", wrap(hook, Communicator._communicate))
    communicator = Communicator(recording, megatron.Timers())
    with otel_rl.step(1):
        assert (True, False, True) == communicator.recv_forward()
        assert (False, False, True) == communicator.send_forward()
        assert (False, True, True) == communicator.send_backward_recv_backward(overlap=False)
        assert (False, True, False) == communicator.send_backward_recv_backward(overlap=True)
    run = recording.stop()
    waits = [span for span in run.spans(None) if span.name == v.IDLE]
    assert [{v.IDLE_REASON: "pipeline"}] * 2 == [dict(span.attributes) for span in waits]
    (share,) = run.points(v.BUBBLE_RATIO)
    assert (0.5, "pipeline") == (share.value, share.attributes[v.IDLE_REASON])


def test_a_timer_inside_the_hook_of_its_name_is_no_second_stage(recording: Recording) -> None:
    """Who sets the drop-in has the hooks as well."""
    timers = megatron.Timers()

    def forward() -> None:
        timers("forward-compute").start()
        recording.tick(1)
        timers("forward-compute").stop()

    with otel_rl.step(1):
        hooked(megatron, "forward_step", forward)()
    step = next(tree for tree in recording.trees() if tree.name == "rl.loop").below[0]
    assert (Tree(v.FORWARD, 0, 1),) == step.below


def test_timers_without_a_recording_do_nothing() -> None:
    """They stay in the configuration of a program that is not recorded."""
    timer = megatron.Timers()("forward-compute")
    timer.start()
    timer.stop()
    assert {} == tracing.open
