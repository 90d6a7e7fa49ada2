"""Actions on real trainings with TRL: the right checkpoints, the right step to stop, and equal losses behind both."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.journal.views import LogView
from tests.programs.launch import Trained, Trainings
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

BEST = '[actions.best]\ndo = "checkpoint"\nmetric = "rl.reward.score"\ndirection = "max"\nkeep = 2\n'
STOP = '[actions.enough]\ndo = "stop"\nmetric = "reward"\nabove = -1\ntimes = 3\n'
STEPS = {"max_steps": 6}


def trained(trainings: Trainings, name: str, settings: str, **job: Any) -> Trained:
    """Train with such a file."""
    file = trainings.directory / f"{name}.toml"
    file.write_text(settings)
    return trainings.train(name, env={"OTEL_RL_RULES": str(file)}, **job)


def losses(result: Trained) -> dict[int, tuple[float, float]]:
    """Return loss and reward of each step."""
    return {log["step"]: (log["loss"], log["reward"]) for log in result.truth["logs"] if "loss" in log}


def taken(result: Trained) -> list[LogView]:
    """Return the log records of actions."""
    return list(Recorded(result.runs).run.logs(v.ACTION_TAKEN))


@pytest.fixture(scope="module")
def whole(trainings: Trainings) -> Trained:
    """Train to the end, with best checkpoints."""
    return trained(trainings, "whole", BEST, config=STEPS)


def test_the_best_checkpoints_are_kept(whole: Trained) -> None:
    """Those of the two best rewards of all, with the value in their names."""
    rewards = {step: reward for step, (_, reward) in losses(whole).items()}
    best = sorted(rewards, key=lambda step: -rewards[step])[:2]
    found = (whole.directory / "checkpoints" / "best-best").glob("*/checkpoint-*")
    names = {f"rl.reward.score={rewards[step]:.6g}/checkpoint-{step}" for step in best}
    assert names == {str(one.relative_to(one.parent.parent)) for one in found}
    assert {"done"} == {one.attributes[v.ACTION_OUTCOME] for one in taken(whole)}
    run = Recorded(whole.runs).run
    (counted,) = run.last_points(v.ACTIONS)
    assert len(taken(whole)) == counted.value == len([span for span in run.spans() if span.name == v.ACTION])


def test_a_best_checkpoint_is_resumed_with_equal_losses(trainings: Trainings, whole: Trained) -> None:
    """As if it had not been left."""
    found = sorted(
        (whole.directory / "checkpoints" / "best-best").glob("*/checkpoint-*"), key=lambda one: int(one.name[11:])
    )
    step = int(found[0].name[11:])
    resumed = trainings.train("from_best", config=STEPS, resume=str(found[0]))
    expected = {number: of for number, of in losses(whole).items() if number > step}
    assert expected
    assert expected == losses(resumed)


def test_a_stop_is_clean_and_resumed_with_equal_losses(trainings: Trainings, whole: Trained) -> None:
    """It comes after the third value, with a checkpoint of that step."""
    stopped = trained(trainings, "stopped", STOP, config=STEPS)
    assert ([1, 2, 3], 3) == (stopped.truth["steps"], len(losses(stopped)))
    (log,) = taken(stopped)
    assert log.body.startswith("Stops the training: reward is above -1 3 times in a row (now ")
    checkpoint = stopped.directory / "checkpoints" / "checkpoint-3"
    resumed = trained(trainings, "resumed", BEST, config=STEPS, resume=str(checkpoint))
    assert losses(whole) == {**losses(stopped), **losses(resumed)}
