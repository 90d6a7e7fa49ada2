"""Actions on real trainings with TRL: the right checkpoints, the right step to stop, and equal losses behind both."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.actions.of_trainer import _saved_in
from otel_rl.journal.views import LogView
from otel_rl.report.build import build_report
from otel_rl.runs.locate import open_whole
from tests.programs.launch import Trained, Trainings, train
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

BEST = '[actions.best]\ndo = "checkpoint"\nmetric = "rl.reward.score"\ndirection = "max"\nkeep = 2\n'
STOP = '[actions.enough]\ndo = "stop"\nmetric = "reward"\nabove = -1\ntimes = 3\n'
STEPS = {"max_steps": 6}


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


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
    first = min((whole.directory / "checkpoints" / "best-best").glob("*/checkpoint-*"), key=step_of)
    resumed = trainings.train("from_best", config=STEPS, resume=str(first))
    expected = {number: of for number, of in losses(whole).items() if number > step_of(first)}
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


@pytest.mark.guarded
def test_a_checkpoint_that_fails_harms_nothing(trainings: Trainings, whole: Trained) -> None:
    """A file is where its folder has to be: each one is counted, and the training is the same."""
    output = trainings.directory / "blocked"
    output.mkdir()
    (output / "best-best").write_text("mine")
    never = BEST.replace("best]", "never]").replace("rl.reward.score", "eval_rewrad")
    failed = trained(trainings, "failing", BEST + never, config={**STEPS, "output_dir": str(output)})
    assert (losses(whole), "mine") == (losses(failed), (output / "best-best").read_text())
    outcomes = [(one.attributes[v.ACTION_NAME], one.attributes[v.ACTION_OUTCOME]) for one in taken(failed)]
    assert {("best", "failed"), ("never", "no_value")} == set(outcomes)
    found = build_report(open_whole(Recorded(failed.runs).run.path), time.time_ns()).findings.health
    (finding,) = [one for one in found if one.rule == "action_failed"]
    assert finding.sentence.startswith("The action best failed "), finding.sentence
    assert "like 1 other" in finding.sentence


@pytest.mark.guarded
def test_a_checkpoint_for_which_there_is_no_room_leaves_nothing(trainings: Trainings, whole: Trained) -> None:
    """The weights are written when the disk is full: nobody may resume that. A stop comes all the same."""
    failed = trained(
        trainings, "no_room", BEST + STOP.replace("times = 3", "times = 6"), config=STEPS, play="without_room"
    )
    assert losses(whole) == losses(failed)
    assert [] == list((failed.directory / "checkpoints").rglob("checkpoint-*"))
    assert {("best", "failed"), ("enough", "failed")} == {
        (one.attributes[v.ACTION_NAME], one.attributes[v.ACTION_OUTCOME]) for one in taken(failed)
    }
    (last,) = [one for one in taken(failed) if one.attributes[v.ACTION_NAME] == "enough"]
    assert last.body.startswith("Stops the training without a checkpoint ("), last.body


def test_a_long_name_of_a_metric_is_cut(tmp_path: Path) -> None:
    """A folder's name has at most 255 bytes."""
    saved = _saved_in(tmp_path, "é/" * 200, -1.23456e-300, 7)
    saved.mkdir(parents=True)
    assert (f"{'é_' * 66}é=-1.23456e-300", "checkpoint-7") == (saved.parent.name, saved.name)


def test_two_ranks_stop_after_the_same_step(tmp_path: Path) -> None:
    """Rank 1 has the actions of rank 0; what they leave can be resumed."""
    (tmp_path / "otel_rl.toml").write_text(BEST + STOP)
    changes = {"OTEL_RL_RULES": str(tmp_path / "otel_rl.toml")}
    stopped = train(tmp_path / "stopped", ranks=2, config={"max_steps": 7}, env=changes)
    assert [[1, 2, 3, 4, 5]] * 2 == [truth["steps"] for truth in stopped.truths]
    checkpoint = stopped.directory / "checkpoints" / "checkpoint-5"
    resumed = train(tmp_path / "resumed", ranks=2, config={"max_steps": 7}, resume=str(checkpoint))
    assert [[6, 7]] * 2 == [truth["steps"] for truth in resumed.truths]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {one.name for one in checkpoint.iterdir()}
    best = list((stopped.directory / "checkpoints" / "best-best").glob("*/checkpoint-*"))
    assert len(best) == 2 and min(map(step_of, best)) >= 3
