"""Planted faults in programs of NeMo-RL's shape: the report names each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.journal.read import Run, open_run
from otel_rl.report.build import build_report
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import Report
from tests.blamed import blamed
from tests.fixtures import WALL_NS, Recording
from tests.nemo_rl import world
from tests.nemo_rl.conftest import Program

DRIVER = Rank("driver", 0)
ROOT = Path(__file__).parents[2]


def report_of(run: Run) -> Report:
    """Make the report of a run by the fake clock."""
    return build_report(run, WALL_NS + 10**12)


def failed(run: Run) -> dict[str, str]:
    """Return the error of each stage that failed."""
    return {
        span.name: str(span.attributes[v.ERROR_TYPE]) for span in run.spans(None) if v.ERROR_TYPE in span.attributes
    }


@pytest.mark.slow
def test_a_slow_rank(tmp_path: Path) -> None:
    """It takes three times as long for everything."""
    environment = {**os.environ, "OTEL_RL_DIR": str(tmp_path), "OTEL_RL_RUN_ID": "run", "OTEL_RL_SIDECAR": "false"}
    subprocess.run([sys.executable, "-m", "tests.nemo_rl.job", "--slow", "1"], cwd=ROOT, env=environment, check=True)
    findings = build_report(open_run(tmp_path / "run"), time.time_ns()).findings
    assert Rank("actor", 1) in blamed(findings.time)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reward_that_raises(is_async: bool, train: Program, stubbed: Recording) -> None:
    """It ends a synchronous training; NeMo-RL wraps what an asynchronous rollout raises, and cancels the others."""
    config = world.config(rewards=[True], async_rollouts=is_async)
    with pytest.raises(Exception, match="theirs") as caught:
        train("grpo_train", config)
    raised, run = caught.value, stubbed.stop()
    expected = (RuntimeError, "OSError('theirs')") if is_async else (OSError, "None")
    assert expected == (type(raised), repr(raised.__cause__))
    errors, outer = failed(run), type(raised).__name__
    assert ("OSError", outer, outer) == (errors[v.REWARD], errors[v.SAMPLE], errors[v.LOOP])
    report = report_of(run)
    found = [("driver", 1, v.REWARD, "OSError")]
    assert found == [(one.rank.role, one.step, one.stage, one.error) for one in report.failures]
    (one,) = report.findings.health
    assert ("failed", DRIVER, v.REWARD, 1) == (one.rule, one.rank, one.stage, one.step)
    assert "OSError inside rl.reward, step 1" in one.sentence


def test_a_reward_that_raises_in_a_group(train: Program) -> None:
    """An asynchronous training goes on without the group, which is made again."""
    run = train("async_grpo_train", world.config(rewards=[True, *[False] * 4]))
    errors = failed(run)
    assert ("OSError", "RuntimeError") == (errors[v.REWARD], errors[v.SAMPLE_GROUP])
    report = report_of(run)
    (one,) = report.findings.health
    assert ("call_failed", v.REWARD, 1, 2) == (one.rule, one.stage, one.step, report.attempts[-1].steps)
    (point,) = run.points(v.GROUPS_DROPPED.__eq__)
    assert ("failed", 1) == (point.attributes[v.DROPPED_BECAUSE], point.value)


def test_an_engine_that_fails(train: Program) -> None:
    """NeMo-RL trains on the sample without an answer."""
    run = train("grpo_train", world.config(engine=[True], async_rollouts=True))
    (one,) = report_of(run).findings.health
    assert ("call_failed", DRIVER, v.SAMPLE_TURN, 1) == (one.rule, one.rank, one.stage, one.step)
    assert "TimeoutError inside rl.sample.turn, step 1" in one.sentence


def test_a_failed_group_is_not_what_stopped_a_run(
    train: Program, stubbed: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user did, in the same step."""

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("nemo_rl.models.policy.lm_policy").Policy, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train("async_grpo_train", world.config(rewards=[True, *[False] * 4]))
    found = {one.rule: (one.stage, one.step) for one in report_of(stubbed.stop()).findings.health}
    assert {"call_failed": (v.REWARD, 1), "stopped": (v.TRAIN, 1)} == found


def test_a_timer_of_another_training(train: Program, stubbed: Recording) -> None:
    """What else uses the timer of NeMo-RL's steps, as its SFT does, ends no loop of the program's own."""
    with otel_rl.step(1), suppress(ValueError), import_module("nemo_rl.utils.timer").Timer().time("total_step_time"):
        raise ValueError
    assert {} == failed(stubbed.stop())


def test_an_asynchronous_training_that_fails(train: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL prints the exception and returns; its step has failed all the same."""
    calls = iter([None, ValueError("theirs")])

    def update(*args: object, **kwargs: object) -> None:
        error = next(calls)
        if error is not None:
            raise error

    monkeypatch.setattr(import_module("nemo_rl.models.policy.lm_policy").Policy, "train", update)
    run = train("async_grpo_train", world.config())
    assert "ValueError" == failed(run)[v.LOOP]
    report = report_of(run)
    (one,) = report.findings.health
    assert ("failed", DRIVER, v.TRAIN, 2) == (one.rule, one.rank, one.stage, one.step)
    assert "failed" == report.attempts[-1].state


@pytest.mark.parametrize("is_async", [False, True])
def test_rollouts_that_are_filtered(is_async: bool, train: Program) -> None:
    """Of four batches of two groups, half of the groups are of no use."""
    run = train("grpo_train", world.config(spreads=[0, 0, 0, 1], async_rollouts=is_async))
    (one,) = report_of(run).findings.learn
    assert "groups_dropped" == one.rule
    assert "50 % of the 8 prompts that were sampled were dropped (3 filtered and 1 surplus)." == one.sentence
