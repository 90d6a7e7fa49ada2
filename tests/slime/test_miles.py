"""miles by its shape: its driver awaits what slime's waits for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.slime.miles import INTEGRATION
from otel_rl.journal.read import Run
from tests.fixtures import Recording
from tests.slime import world

SHAPE = Path(__file__).parent / "shape"
HOOKS = {hook.target: hook for hook in (*INTEGRATION.hooks, *INTEGRATION.arriving)}


@pytest.fixture
def train(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Run]]:
    """Return a function that runs the program of miles' shape, recorded."""
    monkeypatch.syspath_prepend(str(SHAPE))
    monkeypatch.setattr(world, "CLOCK", [stubbed.tick])
    stubbed.start("miles")
    remote = wrap(HOOKS["ray.actor:ActorMethod._remote"], world.AwaitedMethod._remote)
    monkeypatch.setattr(world.AwaitedMethod, "_remote", remote)
    manager = import_module("miles.ray.rollout.rollout_manager").RolloutManager
    for hook in INTEGRATION.arriving:
        name = hook.target.partition(".")[2]
        monkeypatch.setattr(manager, name, wrap(hook, vars(manager)[name]))

    def run(config: Any) -> Run:
        asyncio.run(import_module("train_miles").train(config))
        return stubbed.stop()

    yield run
    for name in [name for name in sys.modules if name == "train_miles" or name.partition(".")[0] == "miles"]:
        del sys.modules[name]


def test_a_step(train: Callable[[Any], Run]) -> None:
    """The driver has a stage for what it awaits of ranks; theirs are below."""
    run = train(world.config())
    spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns))
    (root,) = [one for one in spans if one.name == v.LOOP and one.attributes[v.ITERATION] == 1]
    known = {span.span_id: span.name for span in spans}
    rank = f"{v.RANK_SPAN} 0"
    assert [
        (v.LOOP, ""), (rank, v.LOOP), (v.SAMPLE, rank), (v.SAMPLE, v.SAMPLE), (v.SAMPLE_GROUP, v.SAMPLE),
        (v.TRAJECTORY, v.SAMPLE_GROUP),
        (v.SAMPLE_TURN, v.TRAJECTORY), (v.REWARD, v.TRAJECTORY), (v.TRAIN, rank), (v.LOGPROB, v.TRAIN),
        (v.LOG, v.SAMPLE), (v.VALUE, v.TRAIN), (v.ADVANTAGE, v.TRAIN), (v.TRAIN, v.TRAIN), (v.MINI_BATCH, v.TRAIN),
        (v.SYNC, rank), (v.SYNC, rank), (v.EVALUATE, rank), (v.EVALUATE, v.EVALUATE),
    ] == [
        (span.name, known.get(span.parent_id, "")) for span in spans if span.trace_id == root.trace_id
    ]  # fmt: skip
    reward = next(span.attributes for span in spans if span.name == v.REWARD)
    assert ("train", "math") == (reward[v.MODE], reward[v.REWARD_FUNCTION])
    system = {span.resource[v.SYSTEM] for span in spans}
    assert ({"miles"}, "Tiny-1B") == (system, root.resource[v.MODEL_NAME])


def test_an_asynchronous_step(train: Callable[[Any], Run]) -> None:
    """After its training the driver waits for the rollout ahead, not for the evaluation of a snapshot."""
    run = train(world.config(num_rollout=3, is_async=True))
    spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns))
    (root,) = [one for one in spans if one.name == v.LOOP and one.attributes[v.ITERATION] == 1]
    (rank,) = [one for one in spans if one.parent_id == root.span_id]
    assert [(v.TRAIN, None), (v.IDLE, "queue"), (v.SYNC, None)] == [
        (span.name, span.attributes.get(v.IDLE_REASON)) for span in spans if span.parent_id == rank.span_id
    ]
    assert 1 == rank.attributes[v.LAG_MAX]


def test_an_entropy_that_is_not_computed(train: Callable[[Any], Run]) -> None:
    """It keeps its name: miles logs 0."""
    names = {point.name for point in train(world.config()).points()}
    assert {"miles.train/entropy_loss", v.RESPONSE_LENGTH} == names & {
        v.ENTROPY, "miles.train/entropy_loss", v.RESPONSE_LENGTH,
    }  # fmt: skip


def test_a_training_that_fails(train: Callable[[Any], Run], stubbed: Recording) -> None:
    """Its step has the error, which goes on to the program."""
    with pytest.raises(OSError, match="theirs"):
        train(world.config(broken_step=1))
    loops = [span for span in stubbed.stop().spans(None) if span.name == v.LOOP]
    assert {0: None, 1: "OSError"} == {
        span.attributes[v.ITERATION]: span.attributes.get(v.ERROR_TYPE) for span in loops
    }
