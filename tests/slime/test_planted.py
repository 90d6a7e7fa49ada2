"""Faults that are planted into a training of slime's shape on Ray: the report names each of them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Findings
from otel_rl.report.data.ranks import Rank
from otel_rl.runs.locate import open_whole
from tests.blamed import blamed
from tests.programs.launch import run

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

FAULTS = {"num_rollout": 5, "ranks": 2, "slow": 15, "drop": 1, "broken_reward": 13}
"""Rank 1 is slow; of three groups of a rollout the first is dropped; a reward of the last step raises."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train, until the reward raises."""
    directory = tmp_path_factory.mktemp("planted")
    program = Path(__file__).parent / "shape" / "train.py"
    command = ["-m", "otel_rl", "run", "-q", "--", sys.executable, str(program), json.dumps(FAULTS)]
    output = run(directory, *command, code=1, OTEL_RL_RUN_ID="planted", SHAPE_TICK_S="0.01")
    assert "OSError: theirs" in output
    return directory / "runs" / "planted"


@pytest.fixture(scope="module")
def found(folder: Path) -> Findings:
    """Return what its report finds."""
    return build_report(open_whole(folder), time.time_ns()).findings


def test_a_slow_rank(found: Findings) -> None:
    """It is slow in its update, on a busy machine also elsewhere."""
    assert blamed(found.time)[Rank("actor", 1)] in (v.TRAIN, None)


def test_dropped_groups(found: Findings) -> None:
    """One of each of five steps; in the last one the second has failed."""
    (dropped,) = [one for one in found.learn if one.severity != "note"]
    assert ("groups_dropped", 14, ["5 filtered"]) == (dropped.rule, dropped.values["of"], dropped.values["reasons"])


def test_a_reward_that_raises(found: Findings, folder: Path) -> None:
    """Its stage, its step and all between them have failed; the report names who did so first."""
    spans = [span for span in open_whole(folder).spans(None) if v.ERROR_TYPE in span.attributes]
    failed = {(span.name, span.resource[v.ROLE]): span.attributes[v.ERROR_TYPE] for span in spans}
    rollouts = (v.SAMPLE, v.SAMPLE_GROUP, v.TRAJECTORY, v.REWARD)
    assert {
        **{(name, "driver"): "RayTaskError(OSError)" for name in (v.LOOP, f"{v.RANK_SPAN} 0", v.SAMPLE)},
        **{(name, "rollout_manager"): "OSError" for name in rollouts},
    } == failed
    assert [4] == [span.attributes[v.ITERATION] for span in spans if span.name == v.LOOP]
    (failure,) = [one for one in found.health if one.severity != "note"]
    expected = "failed", Rank("rollout_manager", 0), 4, v.REWARD
    assert expected == (failure.rule, failure.rank, failure.step, failure.stage)
