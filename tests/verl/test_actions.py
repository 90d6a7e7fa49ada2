"""An early stop of a real verl: the step that follows is the last one, and verl ends by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from tests.verl.training import UNDER_OTEL_RL, train

pytestmark = pytest.mark.verl

SETTINGS = """
[actions.enough]
do = "stop"
metric = "rl.reward.score"
above = -100

[actions.best]
do = "checkpoint"
metric = "rl.reward.score"
direction = "max"
"""


def test_the_step_that_follows_is_the_last(tmp_path: Path) -> None:
    """It stops after the second of four steps; best checkpoints are refused, and said to be."""
    file = tmp_path / "actions.toml"
    file.write_text(SETTINGS)
    done = train(tmp_path, "trainer.total_training_steps=4", under=UNDER_OTEL_RL, OTEL_RL_RULES=str(file))
    assert 0 == done.code, done.output[-4000:]
    assert [1, 2] == [row["training/global_step"] for row in done.metrics() if "training/global_step" in row]
    taken = [log for run in done.recorded() for log in run.logs(v.ACTION_TAKEN)]
    outcomes = {str(log.attributes[v.ACTION_NAME]): log.attributes[v.ACTION_OUTCOME] for log in taken}
    assert {"enough": "done", "best": "failed"} == outcomes
