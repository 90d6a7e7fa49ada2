"""Pipelines of ROLL: what its timers say of a step, and what is known of the job."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.roll import pipeline
from otel_rl.integrations.roll.hooks import INTEGRATION
from otel_rl.single_controller.driver import driver
from tests.fixtures import Recording, Tree, trees

HOOKS = {hook.target.rpartition(":")[2]: hook for hook in INTEGRATION.hooks}


def config(**changes: Any) -> Any:
    """Make what is read of a configuration."""
    training = SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=4, learning_rate=1e-6)
    model = SimpleNamespace(model_name_or_path=changes.pop("model", "/models/Tiny-1B/"))
    generating = SimpleNamespace(num_return_sequences=8, max_new_tokens=64)
    return SimpleNamespace(
        actor_train=SimpleNamespace(world_size=2, training_args=training, model_args=model),
        actor_infer=SimpleNamespace(generating_args=generating),
        **{"rollout_batch_size": 16, "ppo_epochs": 3, "max_steps": 5, "output_dir": "output", "pretrain": "other",
           "adv_estimator": "grpo", **changes},
    )  # fmt: skip


class Timer:
    """Stands for codetiming's."""

    def __init__(self, name: str) -> None:
        self.name, self.last = name, 0.5

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        pass


class Pipeline:
    """Stands for ROLL's; what ``work`` does is its training."""

    def __init__(self, pipeline_config: Any) -> None:
        self.pipeline_config, self.state = pipeline_config, SimpleNamespace(step=-1)
        self.work: Any = None

    def run(self) -> None:
        self.work()


@pytest.fixture(autouse=True)
def hooked(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hook both classes."""
    for kind, base in ((Timer, "Timer"), (Pipeline, "BasePipeline")):
        for name in ("__init__", "__enter__", "__exit__", "run"):
            if f"{base}.{name}" in HOOKS:
                monkeypatch.setattr(kind, name, wrap(HOOKS[f"{base}.{name}"], vars(kind)[name]))


def stages(tree: Tree) -> list[tuple[str, float]]:
    """Name the stages of a step and how long they took."""
    return [(stage.name, stage.end - stage.start) for rank in tree.below for stage in rank.below]


def test_a_step_lasts_until_the_next_one(recording: Recording) -> None:
    """What lies behind its timer is its own: the agentic pipeline logs there. Numbers are those of ROLL."""
    made = Pipeline(config())

    def work() -> None:
        for number in range(2):
            with Timer("pipeline_step_total"), Timer("rollout"):
                recording.tick(2)
            with Timer("log"):
                recording.tick(1)
            made.state.step = number

    made.work = work
    made.run()
    assert driver.trainer is None
    run = recording.stop()
    loops = [tree for tree in trees(run) if tree.name == v.LOOP]
    assert [[(v.SAMPLE, 2), (v.LOG, 1)]] * 2 == [stages(tree) for tree in loops]
    numbers = sorted(span.attributes[v.ITERATION] for span in run.spans(None) if span.name == v.LOOP)
    assert [0, 1] == numbers


def test_a_training_that_goes_on_from_a_checkpoint(recording: Recording) -> None:
    """It begins with the step behind it."""
    made = Pipeline(config())
    made.state.step = 7
    made.work = lambda: Timer("step_total").__enter__()
    made.run()
    (step,) = [span for span in recording.stop().spans(None) if span.name == v.LOOP]
    assert 8 == step.attributes[v.ITERATION]


def test_every_timer_of_the_table_is_a_stage(recording: Recording) -> None:
    """Others are none; one inside another of the same name is part of it."""
    made = Pipeline(config())

    def work() -> None:
        with Timer("step_total"):
            for name in (*pipeline.TIMERS, "something_else"):
                with Timer(name):
                    recording.tick(1)
            with Timer("step_train"), Timer("train_timer"):
                recording.tick(1)

    made.work = work
    made.run()
    (tree,) = [tree for tree in trees(recording.stop()) if tree.name == v.LOOP]
    assert [(stage, 1) for stage, _ in pipeline.TIMERS.values()] + [(v.TRAIN, 1)] == stages(tree)


def test_an_error_is_that_of_stage_and_step(recording: Recording) -> None:
    """And goes on to the program."""
    made = Pipeline(config())

    def work() -> None:
        with Timer("step_total"), Timer("step_train"):
            raise OSError("theirs")

    made.work = work
    with pytest.raises(OSError, match="theirs"):
        made.run()
    assert driver.trainer is None
    found = {span.name: span.attributes.get(v.ERROR_TYPE) for span in recording.stop().spans(None)}
    assert ("OSError", "OSError") == (found[v.LOOP], found[v.TRAIN])


def test_timers_outside_of_a_training(recording: Recording) -> None:
    """On a rank those that load and offload a model are stages; a name of ours says nothing there."""
    for name in ("actor_train/train_step_onload", "actor_train/train_step_execute", "actor_train/train_step_offload",
                 "step_train", "my_onload", None):  # fmt: skip
        with Timer(name):  # type: ignore[arg-type]
            recording.tick(1)
    found = [span for span in recording.stop().spans(None) if span.name == v.SYNC]
    assert {"load_states": 1, "offload_states": 1} == Counter(span.attributes[v.SYNC_OPERATION] for span in found)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, ("GRPO", "Tiny-1B")), ({"model": None, "adv_estimator": "gae"}, ("GAE", "other"))],
)
def test_roots_say_what_is_trained(recording: Recording, changes: dict[str, Any], expected: tuple[str, str]) -> None:
    """The algorithm and the last part of the model's path."""
    Pipeline(pipeline_config=config(**changes))
    (said,) = {
        (span.resource[v.ALGORITHM], span.resource[v.MODEL_NAME], span.resource[v.SYSTEM], span.resource[v.ROLE])
        for span in recording.stop().spans(None)
    }
    assert (*expected, "roll", "driver") == said


def test_settings_are_those_of_a_rank(recording: Recording) -> None:
    """128 answers a step on two ranks; each rank's 64 are updated by 8, three times over."""
    made = Pipeline(config())
    made.work = lambda: None
    made.run()
    (setup,) = [span for span in recording.stop().spans(None) if v.SETTINGS_STEPS in span.attributes]
    assert {
        v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_SAMPLES: 64, v.SETTINGS_GROUP: 8, v.SETTINGS_LIMIT: 64,
        v.SETTINGS_UPDATES: 24, v.SETTINGS_STEPS: 5,
    } == {key: value for key, value in setup.attributes.items() if key.startswith("rl.settings")}  # fmt: skip


@pytest.mark.guarded
def test_an_unknown_configuration_costs_only_what_it_says(recording: Recording) -> None:
    """Steps are recorded all the same."""
    made = Pipeline(SimpleNamespace(output_dir="output"))

    def work() -> None:
        with suppress(OSError), Timer("step_total"):
            recording.tick(1)

    made.work = work
    made.run()
    assert 1 == len([tree for tree in trees(recording.stop()) if tree.name == v.LOOP])
