"""TRL: OnlineDPO as it really trains, read back and compared with what it logged."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from tests.programs.launch import Trained, Trainings
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

STEP = """
rl.idle
rl.sample
rl.train.forward
rl.logprob ref
rl.reward
rl.train.backward
rl.train.clip
rl.train.optimizer
rl.log
"""


@pytest.fixture(scope="module")
def trained(trainings: Trainings) -> tuple[Trained, Recorded]:
    """Three steps of four prompts with two answers each."""
    result = trainings.train("online-dpo", trainer="online_dpo")
    return result, Recorded(result.runs)


def test_every_stage_of_every_step_is_a_span(trained: tuple[Trained, Recorded]) -> None:
    """In this order; the last step has the log of the whole training."""
    _, recorded = trained
    whole = [*STEP.strip().splitlines(), "rl.log"]
    assert {1: whole, 2: whole, 3: [*whole, "rl.log"]} == {n: step.outline() for n, step in recorded.steps().items()}
    assert ([], {}) == (recorded.orphans, recorded.errors())


def test_numbers_are_those_that_trl_logs(trained: tuple[Trained, Recorded]) -> None:
    """Sums over a sequence have no canonical name; samples and tokens count in the step that made them."""
    result, recorded = trained
    logs = [log for log in result.truth["logs"] if "loss" in log]
    assert 3 == len(logs)
    names = {"objective/scores": v.REWARD_SCORE, "objective/kl": "trl.objective/kl", "grad_norm": v.GRAD_NORM}
    for name, ours in names.items():
        assert {log["step"]: [log[name]] for log in logs} == recorded.values(ours), name
    losses = {step: round(value, 4) for step, (value,) in recorded.values(v.LOSS).items()}
    assert {log["step"]: log["loss"] for log in logs} == losses
    assert {} == recorded.values(v.KL_REFERENCE) | recorded.values(v.ENTROPY)
    assert [1, 2, 3] == list(recorded.values(v.SAMPLES_RATE, rl_wall="step"))
    assert all(rate > 0 for rates in recorded.values(v.SAMPLES_RATE).values() for rate in rates)
    assert 24 == recorded.total(v.SAMPLES)
