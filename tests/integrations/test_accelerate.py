"""accelerate: its optimizer between and at the end of an accumulation, and where it skips its update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import accelerate
import torch

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.trace.stage import Stage
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[], Recorded]]:
    """Record this process; calling it ends the recording and reads it."""
    otel_rl.instrument(["torch", "accelerate"])

    def end() -> Recorded:
        otel_rl.uninstrument()
        return Recorded(tmp_path / "runs")

    yield end
    otel_rl.uninstrument()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def test_an_accumulation_has_one_update(recorded: Callable[[], Recorded]) -> None:
    """Between its micro-batches the optimizer does nothing, which is no stage; torch's own step is inside the last."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.25))
    with otel_rl.step(1):
        for _ in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(2, 4)).sum())
                optimizer.step()
                optimizer.zero_grad()
    one = recorded()
    (step,) = one.steps().values()
    assert [v.BACKWARD, v.BACKWARD, v.OPTIMIZER] * 2 == step.outline()
    assert [False, False] == [node.attributes[v.OPTIMIZER_SKIPPED] for node in step.find(v.OPTIMIZER)]
    assert (2, 0) == (one.total(v.TRAIN_STEPS), one.total(v.TRAIN_STEPS_SKIPPED))
    assert {1: [0.25, 0.25]} == one.values(v.LEARNING_RATE)


def test_a_skipped_update_says_so(recorded: Callable[[], Recorded]) -> None:
    """A gradient that is infinite makes the scaler skip the step: counted apart, and said on the stage."""
    accelerate.Accelerator(cpu=True)
    parameter = torch.nn.Parameter(torch.ones(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = accelerate.optimizer.AcceleratedOptimizer(torch.optim.SGD([parameter], lr=0.5), scaler=scaler)
    with otel_rl.step(1):
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale((parameter * factor).sum()).backward()
            optimizer.step()
    one = recorded()
    (step,) = one.steps().values()
    assert [False, True, False] == [node.attributes[v.OPTIMIZER_SKIPPED] for node in step.find(v.OPTIMIZER)]
    assert (2, 1) == (one.total(v.TRAIN_STEPS), one.total(v.TRAIN_STEPS_SKIPPED))


def test_a_single_process_has_no_collectives(recorded: Callable[[], Recorded]) -> None:
    """Its gathers return at once and would only be noise."""
    accelerator = accelerate.Accelerator(cpu=True)
    with otel_rl.step(1):
        accelerator.gather(torch.ones(2))
        accelerate.utils.gather_object([1])
        accelerator.wait_for_everyone()
    one = recorded()
    assert [[]] == [step.children for step in one.steps().values()]
    assert [] == list(one.run.points(v.COMM_DURATION))


@pytest.mark.parametrize("stages", [[], [v.CLIP]], ids=["alone", "in a stage of the user's"])
def test_clipping_is_a_stage_with_its_norm(recorded: Callable[[], Recorded], stages: list[str]) -> None:
    """As transformers 4.56 and 4.57 do it in the midst of their loop, and anybody's own loop."""
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.25))
    norms = []
    with otel_rl.step(1):
        for scale in (1.0, 2.0):
            accelerator.backward(scale * model(torch.ones(2, 4)).sum())
            with contextlib.ExitStack() as stack:
                for name in stages:
                    stack.enter_context(otel_rl.stage(name))
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            optimizer.zero_grad()
    one = recorded()
    (step,) = one.steps().values()
    assert [v.BACKWARD, v.CLIP, v.OPTIMIZER] * 2 == step.outline()
    assert norms[1] == pytest.approx(2 * norms[0])
    assert {1: pytest.approx(norms)} == one.values(v.GRAD_NORM, rl_scope="global")


def test_a_trainer_that_clips_says_the_norm_itself(recorded: Callable[[], Recorded]) -> None:
    """Below the stage of an integration the call is a part of it, which takes the norm already."""
    accelerator = accelerate.Accelerator(cpu=True)
    model: Any = accelerator.prepare(torch.nn.Linear(4, 1))
    with otel_rl.step(1):
        accelerator.backward(model(torch.ones(2, 4)).sum())
        with Stage(v.CLIP, coarse=True):
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
    one = recorded()
    (step,) = one.steps().values()
    assert [v.BACKWARD, v.CLIP] == step.outline()
    assert {} == one.values(v.GRAD_NORM)
