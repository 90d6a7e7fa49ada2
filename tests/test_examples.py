"""The examples run as they stand, and what they record can be read back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_rl import vocabulary
from otel_rl.journal.read import open_run
from tests.programs import launch

pytestmark = pytest.mark.medium

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, directory: Path) -> Counter[str]:
    """Run an example in a process of its own and count the spans of the run that it leaves."""
    environ = {**os.environ, "OTEL_RL_DIR": str(directory), "OTEL_RL_RUN_ID": "example"}
    subprocess.run([sys.executable, str(EXAMPLES / name)], check=True, env=environ, capture_output=True)
    return Counter(span.name for span in open_run(directory / "example").spans())


def test_custom_loop(tmp_path: Path) -> None:
    """A loop without a framework leaves a root, a container and its three stages for every step."""
    expected = {"rl.loop": 200, "rl.sample": 200, "rl.reward": 200, "rl.train": 200, "rl.setup": 1}

    actual = run_example("custom_loop.py", tmp_path)

    assert expected == {name: actual[name] for name in expected}


def test_custom_engine(tmp_path: Path) -> None:
    """A rollout engine of one's own: every request is counted, those that the policy keeps are spans."""
    spans = run_example("custom_engine.py", tmp_path)
    run = open_run(tmp_path / "example")
    assert (5, 320) == (spans["rl.sample"], sum(point.count for point in run.last_points(vocabulary.REQUEST_DURATION)))
    assert {"stop", "length"} == {p.attributes[vocabulary.FINISH] for p in run.last_points(vocabulary.REQUESTS)}
    assert 320 - spans["generate_content tiny"] == sum(p.value for p in run.last_points(vocabulary.OMITTED))
    assert [] == list(run.points(vocabulary.BAD_REQUESTS))


@pytest.mark.slow
def test_grpo(tmp_path: Path) -> None:
    """TRL's trainer leaves every stage of its twenty steps."""
    stages = ["rl.loop", "rl.sample", "rl.reward parity", "rl.train.forward", "rl.train.backward", "rl.train.optimizer"]

    actual = run_example("grpo.py", tmp_path)

    assert dict.fromkeys(stages, 20) == {name: actual[name] for name in stages}


@pytest.mark.slow
def test_fsdp2_grpo(tmp_path: Path) -> None:
    """A sharded loop without a framework: every stage of four ranks, FLOPs, a reward that rises, no fault."""
    printed = launch.run(
        tmp_path, "-W", "ignore", *launch.launcher(4), str(EXAMPLES / "fsdp2_grpo.py"), OTEL_RL_RUN_ID="example"
    )
    directory = tmp_path / "runs" / "example"
    assert f"otel-rl report {directory}" in printed
    run = open_run(directory)
    once = [vocabulary.IDLE, vocabulary.SAMPLE, vocabulary.REWARD, vocabulary.LOGPROB, vocabulary.ADVANTAGE]
    twice = [vocabulary.FORWARD, vocabulary.BACKWARD, vocabulary.CLIP, vocabulary.OPTIMIZER]
    spans = Counter(span.name for span in run.spans())
    assert {vocabulary.LOOP: 25, **dict.fromkeys(once, 100), **dict.fromkeys(twice, 200)} == {
        name: spans[name] for name in (vocabulary.LOOP, *once, *twice)
    }
    rewards = sorted((point.time_ns, point.value) for point in run.points(vocabulary.REWARD_SCORE))
    assert rewards[0][1] + 0.3 < rewards[-1][1]
    stages = {point.attributes[vocabulary.FLOPS_STAGE] for point in run.last_points(vocabulary.FLOPS)}
    assert {vocabulary.LOGPROB, vocabulary.FORWARD} <= stages
    assert [] == list(run.logs(vocabulary.LEDGER_MISMATCH))
    assert [] == [point.attributes for point in run.points(vocabulary.SELF_ERRORS)]
    tokens = vocabulary.TOKENS, vocabulary.TOKENS_PADDING
    forwards = [span.attributes for span in run.spans(set(tokens)) if span.name == vocabulary.FORWARD]
    assert [320] * 200 == [sum(int(str(one[name])) for name in tokens) for one in forwards]
