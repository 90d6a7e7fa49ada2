"""verl's other trainers without asynchrony, two ranks, two steps: PPO with a critic, and the one before V1."""

from __future__ import annotations

import shutil
from typing import NamedTuple

import pytest

from tests.verl.training import MODES, UNDER_OTEL_RL, Trained, train
from tests.verl.trees import Traces

pytestmark = pytest.mark.verl


class Pair(NamedTuple):
    """The same training twice, 1 minute each on two cores."""

    mode: str
    bare: Trained
    watched: Trained

    def traces(self) -> Traces:
        """Return the traces of the only run."""
        (run,) = self.watched.recorded()
        return Traces(run)


@pytest.fixture(scope="module", params=["critic", "legacy"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Train without otel_rl, then under ``otel-rl run``."""
    mode = request.param
    bare, watched = (tmp_path_factory.mktemp(f"{mode}_{name}") for name in ("bare", "watched"))
    first = train(bare, *MODES[mode])
    shutil.copytree(bare / "inputs", watched / "inputs")
    return Pair(mode, first, train(watched, *MODES[mode], under=UNDER_OTEL_RL))


def test_both_end_well_and_equal(pair: Pair) -> None:
    """No metric of verl that is no measurement differs by a bit."""
    assert [0, 0] == [pair.bare.code, pair.watched.code], f"{pair.bare.output[-4000:]}\n{pair.watched.output[-8000:]}"
    first, second = pair.bare.metrics()
    assert [first, second] == pair.watched.metrics()
    assert second["actor/grad_norm"] > 0 and first["critic/score/max"] > first["critic/score/min"]


def test_one_run(pair: Pair) -> None:
    """One trace a step, no span without a parent, none cut."""
    traces = pair.traces()
    assert ["rl.loop 1", "rl.loop 2", "rl.setup", "rl.teardown"] == sorted(traces.roots)
    assert ([], []) == (traces.orphans, traces.truncated)


TRAJECTORY = """\
rl.sample.turn [agent_loop]
  rl.idle queue [agent_loop]
  rl.sample.serve [Server]
rl.reward compute_score [reward]"""
UPDATE = """\
    rl.train {0} [driver]
      2 x rl.train {0} [actor]
        3 x rl.idle data [actor]
        2 x rl.train.mini_batch [actor]
          rl.train.forward [actor]
          rl.train.backward [actor]
          rl.train.clip [actor]
          rl.train.optimizer [actor]"""
LOGPROBS = """\
    rl.logprob old [driver]
      2 x rl.logprob old [actor]
        2 x rl.logprob.forward [actor]
    rl.logprob ref [driver]
      2 x rl.logprob ref [actor]
        2 x rl.logprob.forward [actor]"""
SYNC = """\
    rl.sync update_weights [driver]
      2 x rl.sync update_weights [actor]"""


def rollouts(depth: int) -> str:
    """Draw what is below a trajectory."""
    return "\n".join("  " * depth + line for line in TRAJECTORY.splitlines())


STEPS = {
    "critic": f"""\
rl.loop [driver]
  rl.rank 0 [driver]
    rl.idle data [driver]
    rl.sample.submit [driver]
      4 x rl.sample.group [agent_loop]
        2 x rl.sample.trajectory [agent_loop]
{rollouts(5)}
    rl.idle queue [driver]
    rl.sync sleep_replicas [driver]
    rl.sample.process [driver]
{LOGPROBS}
    rl.value [driver]
      2 x rl.value [actor]
    rl.advantage [driver]
{UPDATE.format("critic")}
{UPDATE.format("actor")}
    rl.checkpoint [driver]
      4 x rl.checkpoint [actor]
        rl.sync load_states [actor]
{SYNC}
    rl.evaluate [driver]
      2 x rl.idle data [driver]
      8 x rl.sample.group [agent_loop]
        rl.sample.trajectory [agent_loop]
{rollouts(5)}
      rl.idle queue [driver]
    2 x rl.log [driver]""",
    "legacy": f"""\
rl.loop [driver]
  rl.rank 0 [driver]
    rl.sample [driver]
      rl.sample [agent_loop]
        8 x rl.sample.trajectory [agent_loop]
{rollouts(5)}
    rl.sync sleep_replicas [driver]
    rl.sample.process [driver]
    rl.reward [driver]
{LOGPROBS}
    rl.advantage [driver]
{UPDATE.format("actor")}
    rl.checkpoint [driver]
      2 x rl.checkpoint [actor]
        rl.sync load_states [actor]
{SYNC}
    rl.evaluate [driver]
      2 x rl.idle data [driver]
      rl.sample [driver]
        rl.sample [agent_loop]
          8 x rl.sample.trajectory [agent_loop]
{rollouts(6)}
    rl.log [driver]""",
}


def test_nothing_stalls(pair: Pair) -> None:
    """They have other stages."""
    assert [] == pair.watched.stalls()


def test_a_step_is_one_tree(pair: Pair) -> None:
    """The second step, with everything that a step of verl has."""
    assert STEPS[pair.mode] == pair.traces().draw("rl.loop 2")


def test_ranks_say_how_much_they_train(pair: Pair) -> None:
    """Half of the tokens of the driver's batch each."""
    trained = [span for span in pair.traces().spans if span.name == "rl.train"]
    models = {str(span.attributes["rl.train.model"]) for span in trained}
    assert ({"critic", "actor"} if pair.mode == "critic" else {"actor"}) == models
    for model in models:
        said = [span for span in trained if span.attributes["rl.train.model"] == model]
        tokens = {
            role: sum(span.attributes["rl.tokens"] for span in said if span.resource["rl.role"] == role)
            for role in ("driver", "actor")
        }
        assert tokens["driver"] == tokens["actor"] > 0
