"""The driver of a job: its loop, its steps, and the parts of a step that timers bracket."""

from __future__ import annotations

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.process.state import state
from otel_rl.single_controller.driver import (
    DRIVER,
    become_driver,
    begin_loop,
    begin_step,
    driver,
    end_loop,
    loop_failed,
    say,
    stage_of,
)
from otel_rl.trace.memory import tracing
from tests.fixtures import Recording, Tree, trees

TIMERS = {"update": (v.TRAIN, ()), "sync": (v.SYNC, ((v.SYNC_OPERATION, "load"),))}


class Trainer:
    """Stands for a framework's."""


def test_a_job_with_its_set_up(recording: Recording) -> None:
    """Roots say of which job they are, and the set-up has its settings."""
    become_driver("myframework", "1.2", {"algorithm": "GRPO", "model_name": "tiny"})
    recording.tick(5)
    trainer = Trainer()
    begin_loop(trainer, "output", {v.SETTINGS_STEPS: 2})
    assert driver.trainer is trainer
    for number in range(2):
        begin_step(number)
        recording.tick(10)
    end_loop((), {}, None)
    assert driver.trainer is None
    recording.tick(3)
    run = recording.stop()
    loops = [Tree(v.LOOP, at, at + 10, (Tree("rl.rank 0", at, at + 10),)) for at in (5, 15)]
    assert [Tree(v.SETUP, 0, 5, (Tree("rl.rank 0", 0, 5),)), *loops] == trees(run)[:3]
    spans = list(run.spans(None))
    said = {tuple(span.resource[key] for key in (v.ROLE, v.SYSTEM, v.SYSTEM_VERSION, v.ALGORITHM)) for span in spans}
    assert {(DRIVER, "myframework", "1.2", "GRPO")} == said
    assert [2] == [span.attributes[v.SETTINGS_STEPS] for span in spans if v.SETTINGS_STEPS in span.attributes]
    assert [0, 1] == sorted(span.attributes[v.ITERATION] for span in spans if span.name == v.LOOP)


def test_a_loop_that_fails(recording: Recording) -> None:
    """Its last step says what ended it."""
    become_driver("myframework", "", None)
    begin_loop(Trainer(), "output", None)
    begin_step(1)
    loop_failed((), {}, ValueError("theirs"))
    assert driver.trainer is None
    (step,) = [span for span in recording.stop().spans(None) if span.name == v.LOOP]
    assert "ValueError" == step.attributes[v.ERROR_TYPE]


def test_a_second_loop_of_a_trainer_may_restart_the_first(recording: Recording) -> None:
    """One of another output trains something else."""
    become_driver("myframework", "", None)
    begun = []
    for output in ("a", "a", "b"):
        begin_loop(Trainer(), output, None)
        assert tracing.loop is not None
        begun.append((tracing.loop, tracing.loop.before))
        begin_step(1)
        end_loop((), {}, None)
    assert [None, begun[0][0], None] == [before for _, before in begun]


def test_outside_of_a_loop_nothing_begins(recording: Recording) -> None:
    """Nor does anything fail."""
    begin_step(1)
    end_loop((), {}, None)
    loop_failed((), {}, ValueError())
    assert [] == [span for span in recording.stop().spans(None) if span.name == v.LOOP]


@pytest.mark.parametrize(("name", "expected"), [("update", v.TRAIN), ("sync", v.SYNC), ("unknown", None)])
def test_a_timer_is_a_stage(name: str, expected: str | None) -> None:
    """A new one for each call, which is not open yet; another timer is none."""
    stage, other = stage_of(TIMERS, name), stage_of(TIMERS, name)
    assert expected == (stage and stage.name)
    if stage is not None and other is not None:
        assert stage.trace is None and stage.attributes is not other.attributes
        assert dict(TIMERS[name][1]) == stage.attributes


def test_what_is_said_is_of_the_open_stage(recording: Recording) -> None:
    """Without one it is of the container; without that of nothing."""
    say({"a": 1})
    with otel_rl.step(0):
        say({"b": 2})
        with otel_rl.stage("train"):
            say({"c": 3})
    said = [(span.name, dict(span.attributes)) for span in recording.stop().spans(None)]
    assert [("rl.rank 0", 1)] == [(name, one["a"]) for name, one in said if "a" in one]
    assert [("rl.rank 0", 2)] == [(name, one["b"]) for name, one in said if "b" in one]
    assert [("rl.train", 3)] == [(name, one["c"]) for name, one in said if "c" in one]


def test_an_actor_becomes_the_driver(recording: Recording) -> None:
    """One of Ray's that turns out to hold the steps."""
    state.inherit(kind="worker", role="worker", rank=3)
    become_driver("myframework", "", None)
    assert (DRIVER, False) == (state.identity.role, state.identity.is_worker)
