"""OpenRLHF's own code on a CPU, synchronous and asynchronous: what is recorded of it, and that it notices nothing."""

from __future__ import annotations

import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.openrlhf.hooks import INTEGRATION
from otel_rl.integrations.openrlhf.numbers import CANONICAL
from tests.layers.records import LAYERS, layered
from tests.openrlhf.training import download, scalars, train
from tests.programs.signatures import script
from tests.roll.training import Trained

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

EVALUATED = "--eval.steps=2", "--eval.n_samples_per_prompt=2"
REWARD = f"--reward.remote_url={Path(__file__).with_name('reward.py')}"
SAMPLES = """
{0} x rl.sample.group [rollout]
  {1} x rl.sample.trajectory [rollout]
    rl.sample.turn [rollout]
    rl.reward reward_func [rollout]"""
COMPUTED = """
    rl.sample.process [driver]
    3 x rl.idle workers [driver]
    2 x rl.logprob old [actor]
      2 x rl.logprob.forward [actor]
    2 x rl.logprob ref [reference]
      2 x rl.logprob.forward [reference]
    rl.advantage [driver]
    rl.train [driver]
      2 x rl.train actor [actor]
        3 x rl.idle data [actor]
        2 x rl.train.forward [actor]
        2 x rl.train.backward [actor]
        rl.train.optimizer [actor]
    rl.sync broadcast_to_vllm [driver]
      2 x rl.sync broadcast_to_vllm [actor]"""
SAVED = "\n    rl.checkpoint [driver]\n      2 x rl.checkpoint [actor]"


def below(depth: int, text: str) -> str:
    """Indent a tree."""
    return text.replace("\n", "\n" + "  " * depth)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenRLHF as it is published."""
    return download(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sync(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps on two ranks; a prompt is filtered; an evaluation and a checkpoint in the second."""
    directory = tmp_path_factory.mktemp("sync")
    held_out = f"--eval.dataset={directory}/work/held_out.jsonl"
    filtering = "--algo.dynamic_filtering_enable", "--data.max_samples=13"
    return train(wheel, directory, *EVALUATED, held_out, REWARD, *filtering, "--ckpt.save_steps=2")


@pytest.fixture(scope="module")
def asynchronous(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps; an evaluation after the second."""
    directory = tmp_path_factory.mktemp("async")
    held_out = f"--eval.dataset={directory}/work/held_out.jsonl"
    return train(wheel, directory, "--train.async_enable", *EVALUATED, held_out)


def test_every_target_is_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Of its modules and of the classes that Ray sends by value."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    (package,) = tmp_path.glob("*/purelib")
    found = script.signatures("openrlhf", package)
    assert script.targets("openrlhf") == sorted(found)


def test_one_run_that_is_finished(sync: Trained, asynchronous: Trained) -> None:
    """It holds what all processes did; each step is one trace."""
    ranks = {"driver 0", "actor 0", "actor 1", "reference 0", "reference 1", "rollout 0"}
    for trained, others in ((sync, set()), (asynchronous, {"generator 0"})):
        assert ranks | others == trained.ranks
        assert ([], [], [], {}) == (
            trained.traces.orphans,
            trained.traces.truncated,
            trained.run.damage,
            trained.errors,
        )
        steps = {f"rl.loop {number}" for number in (1, 2, 3)}
        assert steps | {v.SETUP, v.TEARDOWN} == set(trained.traces.roots) - {v.SAMPLE, v.EVALUATE}
        report = trained.report
        known = ("state", "system", "system_version", "algorithm", "model")
        assert ["finished", "openrlhf", "0.11.2", "GROUP_NORM", "model"] == [report[key] for key in known]


def test_a_step_is_one_tree(sync: Trained) -> None:
    """Of trainer, ranks and rollout engine. Where a prompt is filtered, another one takes its place."""
    assert False, "\n\n".join(sync.traces.draw(f"rl.loop {number}") for number in (1, 2, 3))
