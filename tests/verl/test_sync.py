"""verl's synchronous trainer, two ranks, two steps: the same result with otel_rl, and what is seen of it."""

from __future__ import annotations

import pytest

from otel_rl import vocabulary as v
from tests.verl.training import Trained
from tests.verl.trees import Traces

pytestmark = pytest.mark.verl


def test_ends_well(bare: Trained, watched: Trained) -> None:
    """Both trainings succeed, and only one is recorded."""
    assert [0, 0] == [bare.code, watched.code], f"{bare.output[-4000:]}\n{watched.output[-8000:]}"
    assert not bare.root.exists()


def test_same_result(bare: Trained, watched: Trained) -> None:
    """No metric of verl that is no measurement differs by a bit, and they say that something was learnt from."""
    first, second = bare.metrics()
    assert [first, second] == watched.metrics()
    assert len(first) > 70 and second["actor/grad_norm"] > 0 and first["critic/score/max"] > first["critic/score/min"]
    assert first["response_length/max"] > first["response_length/min"], "every answer has the same length"


def test_one_run(watched: Trained) -> None:
    """One run holds what all processes did: one trace a step, no span without a parent, none cut."""
    (run,) = watched.recorded()
    traces = Traces(run)
    assert ["rl.loop 1", "rl.loop 2", "rl.setup", "rl.teardown"] == sorted(traces.roots)
    assert ([], []) == (traces.orphans, traces.truncated)
    roles = {f"{span.resource['rl.role']} {span.resource['rl.rank']}" for span in traces.spans}
    assert {"driver 0", "actor 0", "actor 1", "agent_loop 0", "reward 0", "Server 0", "Server 1"} == roles
    assert {"verl"} == {span.resource["rl.system"] for span in traces.spans}


ROLLOUT = """
      4 x rl.sample.group [agent_loop]
        2 x rl.sample.trajectory [agent_loop]
          rl.sample.turn [agent_loop]
            rl.idle queue [agent_loop]
            rl.sample.serve [Server]
          rl.reward compute_score [reward]"""
UPDATE = """
    rl.train actor [driver]
      2 x rl.train actor [actor]
        3 x rl.idle data [actor]
        2 x rl.train.mini_batch [actor]
          rl.train.forward [actor]
          rl.train.backward [actor]
          rl.train.clip [actor]
          rl.train.optimizer [actor]"""
STEP = f"""\
rl.loop [driver]
  rl.rank 0 [driver]
    rl.idle data [driver]
    rl.sample.submit [driver]{ROLLOUT}
    rl.idle queue [driver]
    rl.sync sleep_replicas [driver]
    rl.sample.process [driver]
    rl.logprob old [driver]
      2 x rl.logprob old [actor]
        2 x rl.logprob.forward [actor]
    rl.logprob ref [driver]
      2 x rl.logprob ref [actor]
        2 x rl.logprob.forward [actor]
    rl.advantage [driver]{UPDATE}
    rl.checkpoint [driver]
      2 x rl.checkpoint [actor]
        rl.sync load_states [actor]
    rl.sync update_weights [driver]
      2 x rl.sync update_weights [actor]
    rl.evaluate [driver]
      2 x rl.idle data [driver]
      8 x rl.sample.group [agent_loop]
        rl.sample.trajectory [agent_loop]
          rl.sample.turn [agent_loop]
            rl.idle queue [agent_loop]
            rl.sample.serve [Server]
          rl.reward compute_score [reward]
      rl.idle queue [driver]
    2 x rl.log [driver]"""


def test_nothing_stalls(watched: Trained) -> None:
    """Set-up, evaluation and checkpoint take their time."""
    assert [] == watched.stalls()


def test_a_step_is_one_tree(watched: Trained) -> None:
    """The second step, with everything that a step of verl has."""
    assert STEP == Traces(watched.recorded()[0]).draw("rl.loop 2")


def test_stages_of_the_driver_tile_the_step(watched: Trained) -> None:
    """Under no stage of the driver lies less than a tenth of the step's time beside the poll's two seconds."""
    traces = Traces(watched.recorded()[0])
    (root,) = traces.roots["rl.loop 2"]
    (driver,) = [span for span in traces.below(root) if span.name == "rl.rank 0"]
    covered = polled = 0
    for span in traces.below(driver):
        covered += span.end_ns - span.start_ns
        polled += (span.end_ns - span.start_ns) * (span.attributes.get(v.IDLE_REASON) == "queue")
    length = driver.end_ns - driver.start_ns
    assert length - covered < 0.1 * (length - polled)


def test_ranks_count_what_they_train(watched: Trained) -> None:
    """As many tokens as verl says, and on each rank the FLOPs of a forward for two log-probabilities and an update."""
    (run,) = watched.recorded()
    tokens = [point.value for point in run.last_points(v.TRAIN_TOKENS) if point.attributes[v.TOKEN_KIND] != "padding"]
    assert sum(step["perf/total_num_tokens"] for step in watched.metrics()) == sum(tokens)
    flops: dict[object, dict[tuple[object, object], float]] = {}
    for point in run.last_points(v.FLOPS):
        of_rank = flops.setdefault(point.resource[v.RANK], {})
        of_rank[point.attributes[v.FLOPS_STAGE], point.attributes.get(v.LOGPROB_KIND)] = point.value
    assert {0, 1} == flops.keys()
    for of_rank in flops.values():
        once = of_rank[v.LOGPROB, "old"]
        assert once > 0
        assert {(v.LOGPROB, "old"): once, (v.LOGPROB, "ref"): once, (v.FORWARD, None): 3 * once} == of_rank


def test_rewards_are_those_of_verls_samples(watched: Trained) -> None:
    """Of the batch whose mean and extremes verl logs; the scores and tokens that the reward workers saw, too."""
    (run,) = watched.recorded()
    logged = watched.metrics()
    for metric, key in (
        (v.REWARD_SCORE, "critic/score/mean"), (v.REWARD_MAX, "critic/score/max"), (v.REWARD_MIN, "critic/score/min"),
        (v.ADVANTAGE_MEAN, "critic/advantages/mean"), (v.ADVANTAGE_MAX, "critic/advantages/max"),
    ):  # fmt: skip
        assert [step[key] for step in logged] == [point.value for point in run.points(metric)], key
    (seen,) = run.last_points(v.REWARD_DISTRIBUTION)
    assert seen.count == 8 * len(logged)
    assert seen.sum == pytest.approx(8 * sum(step["critic/score/mean"] for step in logged))
    ends = min(step["critic/score/min"] for step in logged), max(step["critic/score/max"] for step in logged)
    assert (seen.min, seen.max) == pytest.approx(ends)
    spreads = [point.value for point in run.points(v.REWARD_STD)]
    assert [step["critic/score/max"] > step["critic/score/min"] for step in logged] == [one > 0 for one in spreads]
    shares = [point.value for point in run.points(v.REWARD_ZERO_STD)]
    assert len(logged) == len(shares) and all(share in (0.0, 0.25, 0.5, 0.75, 1.0) for share in shares)
    spans = {span.span_id: span for span in run.closed_spans(None)}
    rewards = [span for span in spans.values() if v.REWARD_FUNCTION in span.attributes]
    for reward in rewards:
        trajectory = spans[reward.parent_id].attributes
        written = (v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT)
        assert reward.attributes[v.TOKENS] == sum(trajectory[key] for key in written)
    checkpoints = [span for span in spans.values() if span.name == v.CHECKPOINT]
    assert checkpoints and {"verl"} == {span.attributes[v.CHECKPOINT_FORMAT] for span in checkpoints}
