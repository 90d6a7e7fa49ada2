"""RLVR in the shape of ROLL, on Ray: what is seen of it, synchronous and asynchronous."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from otel_rl import ids
from otel_rl import vocabulary as v
from tests.layers.records import LAYERS, layered
from tests.roll.training import OLD, REAL, REFERENCE, SAVED, SCORES, TRAIN, UPDATE, WEIGHTS, Trained, train

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

RANKS = {"driver 0", "actor_train 0", "actor_train 1", "actor_infer 0", "reference 0", "reward-math_rule 0",
         "scheduler-math_rule 0", "scheduler_val 1"}  # fmt: skip
TURN = """
rl.sample.turn [scheduler-math_rule]
  2 x rl.idle queue [scheduler-math_rule]
  rl.sample.serve [actor_infer]"""
REWARD = "\nrl.reward MathRuleRewardWorker [reward-math_rule]"
SAMPLING = """
    rl.sample [driver]
      rl.sample [scheduler-math_rule]"""


def below(depth: int, text: str) -> str:
    """Indent a tree."""
    return text.replace("\n", "\n" + "  " * depth)


def group(number: int, turns: str, samples: str = "2 x ") -> str:
    """Draw groups of samples."""
    return (
        f"\n{number} x rl.sample.group [scheduler-math_rule]\n  {samples}rl.sample.trajectory [scheduler-math_rule]"
        + below(2, turns)
    )


VALIDATION = ("\n    rl.evaluate [driver]" + below(1, SAMPLING) + below(5, group(2, TURN + REWARD, ""))).replace(
    "[scheduler-math_rule]", "[scheduler_val]"
)


@pytest.fixture(scope="module")
def sync(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two steps with a critic; the first prompt is filtered."""
    return train(tmp_path_factory.mktemp("sync"), "rlvr", adv_estimator="gae", filtered=[0])


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps, of which each trains on what the one before has begun."""
    changes = {"async_generation_ratio": 1, "max_steps": 3, "eval_steps": 9}
    return train(tmp_path_factory.mktemp("async"), "rlvr", **changes)


def sync_step(groups: int, *, is_first: bool) -> str:
    """Draw a whole step of synchronous training."""
    return "".join((
        "rl.loop [driver]\n  rl.rank 0 [driver]\n    2 x rl.sync offload_states [actor_train]",
        "\n    rl.sync pause_sampling [driver]", WEIGHTS, VALIDATION if is_first else "",
        SAMPLING, below(4, group(groups, TURN + REWARD)),
        "\n      rl.sync pause_sampling [scheduler-math_rule]\n      rl.sync offload_states [actor_infer]", REFERENCE,
        OLD, "\n      rl.value [critic]",
        "\n        rl.sync load_states [critic]\n        rl.sync offload_states [critic]", SCORES,
        TRAIN, "\n      rl.train critic [critic]",
        UPDATE.format("critic").replace("        rl.train.mini", "        2 x rl.train.mini"),
        "" if is_first else SAVED,
        "\n    rl.log [driver]",
    ))  # fmt: skip


ASYNC_STEP = "".join((
    "rl.loop [driver]\n  rl.rank 0 [driver]\n    2 x rl.sync offload_states [actor_train]",
    "\n    rl.sync pause_sampling [driver]\n      rl.sync pause_sampling [scheduler-math_rule]",
    "\n      rl.sync offload_states [actor_infer]", WEIGHTS, SAMPLING, REFERENCE, OLD, SCORES, TRAIN,
))  # fmt: skip


@pytest.mark.parametrize("name", ["sync", "asynchronous"])
def test_one_run_that_is_finished(request: pytest.FixtureRequest, name: str) -> None:
    """It holds what all processes did, also of those that Ray kills at the end; each step is one trace."""
    trained: Trained = request.getfixturevalue(name)
    critic = {"critic 0"} if name == "sync" else set()
    assert RANKS | critic == trained.ranks
    assert ([], [], [], {}) == (trained.traces.orphans, trained.traces.truncated, trained.run.damage, trained.errors)
    roots = Counter(root for root in trained.traces.roots if root != v.SAMPLE_GROUP)
    steps = {f"rl.loop {number}" for number in range(2 if name == "sync" else 3)}
    assert steps | {"rl.setup", "rl.teardown"} == set(roots)
    report = trained.report
    assert ("finished", "roll", "0.3.0") == (report["state"], report["system"], report["system_version"])
    assert ("GAE" if critic else "GRPO", "tiny") == (report["algorithm"], report["model"])
    assert [] == report["failures"]


def test_a_step_is_one_tree(sync: Trained) -> None:
    """Of driver, ranks, scheduler, servers and rewards; validation before it and a checkpoint at its end."""
    assert sync_step(3, is_first=True) == sync.step(0)
    assert sync_step(2, is_first=False) == sync.step(1)


def test_what_lies_below_what_is_as_in_roll_itself(sync: Trained) -> None:
    """The shape makes nothing that the real pipeline does not."""
    assert set() == sync.edges() - REAL


def test_ranks_set_up_in_the_set_up(sync: Trained) -> None:
    """The model of each rank is loaded there."""
    drawn = sync.traces.draw("rl.setup").splitlines()
    assert {"2 x rl.setup.model [actor_train]", *(f"rl.setup.model [{name}]" for name in ("critic", "reference"))} <= {
        line.strip() for line in drawn
    }


def test_the_log_has_its_four_layers(sync: Trained) -> None:
    """Of the driver alone: a line of each step, and the samples that it trains on, as ROLL groups them."""
    lines = {event: layered(sync.run, event) for event in LAYERS}
    assert {event: 8 if event == v.SAMPLE_RECORD else 2 for event in LAYERS} == {
        k: len(one) for k, one in lines.items()
    }
    assert {"driver"} == {line.resource[v.ROLE] for found in lines.values() for line in found}
    (_, line), (_, update) = (lines[event] for event in (v.ROLLOUT_LINE, v.UPDATE_LINE))
    said = {v.REWARD_SCORE: 1.0, v.REWARD_STD: 0.0, v.REWARD_ZERO_STD: 1.0, v.RESPONSE_LENGTH: 2.0}
    assert said.items() <= line.attributes.items()
    assert f"{v.LOSS_TERM}.policy" in update.attributes
    keys = v.GROUP_ID, v.SAMPLE_REWARD, v.SAMPLE_ADVANTAGE, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.SAMPLE_FINISH
    samples = [tuple(one.attributes.get(key) for key in keys) for one in lines[v.SAMPLE_RECORD]]
    assert 2 * [(f"math_rule-{at // 2}", 1.0, 0.0, 3, 2, "length") for at in range(4)] == samples
    assert {(): 8} == {(): sum(one.count for one in sync.run.last_points(v.REWARD_DISTRIBUTION))}


def test_a_filtered_prompt_is_counted(sync: Trained) -> None:
    """It is sampled, and no step trains on it."""
    assert {("filtered", "train"): 1} == sync.last(v.GROUPS_DROPPED, v.DROPPED_BECAUSE, v.MODE)
    assert {(): 10} == sync.last(v.SAMPLES)
    assert {("prompt",): 30, ("response",): 20, ("environment",): 0} == sync.last(v.SAMPLE_TOKENS, v.TOKEN_KIND)


def test_stages_say_how_much_they_handle(sync: Trained) -> None:
    """Samples and tokens of a rank's part; whether servers work for an evaluation."""
    said = {
        (span.attributes[v.BATCH_SIZE], span.attributes[v.TOKENS], span.attributes[v.TOKENS_RESPONSE])
        for span in sync.traces.spans
        if span.name == v.TRAIN and span.resource[v.ROLE] == "actor_train"
    }
    assert {(2, 10, 4)} == said
    modes = Counter(span.attributes[v.MODE] for span in sync.traces.spans if span.name == v.SAMPLE_SERVE)
    assert {"eval": 2, "train": 10} == modes
    kept = [span for span in sync.traces.spans if span.name == v.SAMPLE_TURN]
    assert {(("stop",), 2)} == {(one.attributes[v.FINISH_REASONS], one.attributes[v.TOKENS_RESPONSE]) for one in kept}


def test_forwards_say_what_they_train(sync: Trained) -> None:
    """Each is of one sample; in two steps actor and critic have four samples each."""
    found = {
        tuple(span.attributes[key] for key in (v.BATCH_SIZE, v.TOKENS, v.TOKENS_RESPONSE, v.TOKENS_PADDING))
        for span in sync.traces.spans
        if span.name == v.FORWARD
    }
    assert {(1, 5, 2, 1)} == found
    assert {("prompt",): 48, ("response",): 32, ("padding",): 16} == sync.last(v.TRAIN_TOKENS, v.TOKEN_KIND)


def test_numbers_are_canonical_or_rolls(sync: Trained) -> None:
    """Once a step, with the step's time; how a number was reduced is no part of its name."""
    assert [1, 1] == sync.points(v.REWARD_SCORE)
    assert [2, 2] == sync.points(v.RESPONSE_LENGTH)
    assert [1] == sync.points(v.EVAL_REWARD)
    assert [0.1, 0.1] == sync.points(v.LEARNING_RATE)
    terms = sync.last(v.LOSS_TERM, v.LOSS_TYPE)
    assert {("policy",), ("value",)} == terms.keys() and terms["value",] == 0.25
    assert [0, 1] == sync.points("roll.system/step")
    assert [True, True] == [math.isnan(value) for value in sync.points("roll.token/right_response_length/mean")]
    names = {one.name for one in sync.run.points(lambda name: name.startswith("roll."))}
    assert not [name for name in names if "@" in name or "pg_loss" in name]


def test_an_asynchronous_step_is_one_tree(asynchronous: Trained) -> None:
    """Without the groups: they outlive it."""
    first = ASYNC_STEP.replace(SAMPLING, VALIDATION + SAMPLING) + "\n    rl.log [driver]"
    last = f"{ASYNC_STEP}{SAVED}\n    rl.log [driver]"
    assert first == asynchronous.step(0)
    assert ASYNC_STEP + "\n    rl.log [driver]" == asynchronous.step(1)
    assert last == asynchronous.step(2)


def test_groups_are_traces_of_their_own(asynchronous: Trained) -> None:
    """Two are made at once, four are aborted by the next update and go on, and two by the end of the training."""
    aborted = "\nrl.sample.turn [scheduler-math_rule]\n  rl.idle queue [scheduler-math_rule]"
    expected = {
        group(2, TURN + REWARD): 2,
        group(2, TURN.replace("\nrl.sample.turn", "\n2 x rl.sample.turn") + REWARD): 4,
        group(2, TURN + aborted): 2,
    }
    drawn = asynchronous.traces.draw_each(v.SAMPLE_GROUP)
    assert {text.partition("x ")[2]: number for text, number in expected.items()} == drawn
    groups = asynchronous.traces.roots[v.SAMPLE_GROUP]
    assert {f"math_rule-{number}" for number in range(8)} == {span.attributes[v.GROUP_ID] for span in groups}
    submitted = Counter(span.attributes[v.SUBMITTED_STEP] for span in groups)
    assert {"train 0": 4, "train 1": 2, "train 2": 2} == submitted
    for span in groups:
        trace_id = ids.trace_id(str(span.resource[v.ATTEMPT_ID]), "rollout", str(span.attributes[v.GROUP_ID]))
        assert trace_id == int.from_bytes(span.trace_id, "big")


def test_a_step_links_to_its_groups(asynchronous: Trained) -> None:
    """With their lag: the weights are one update older from the second step on."""
    for step in range(3):
        lag = min(step, 1)
        expected = [(f"math_rule-{number}", lag, v.SAMPLE_GROUP) for number in (2 * step, 2 * step + 1)]
        assert expected == asynchronous.links(step)
    assert [0, 1, 1] == asynchronous.points(v.SAMPLE_LAG)
    assert [0, 1, 1] == asynchronous.points(v.SAMPLE_STALE)


def test_the_end_of_the_training_filters_nothing(asynchronous: Trained) -> None:
    """Groups that it aborts are no dropped ones."""
    assert {} == asynchronous.last(v.GROUPS_DROPPED, v.DROPPED_BECAUSE)
    turns = [span for span in asynchronous.traces.spans if span.name == v.SAMPLE_TURN]
    aborted = Counter(span.attributes.get(v.FINISH_REASONS) for span in turns if v.REQUEST_ABORTED in span.attributes)
    assert {("abort",): 12, None: 4} == aborted


def test_the_queue_is_known(asynchronous: Trained) -> None:
    """How many groups run and are finished; no call is left open at a server."""
    states = asynchronous.last(v.GROUPS, v.MODE, v.GROUP_STATE)
    assert {("train", "running"), ("train", "finished"), ("eval", "running"), ("eval", "finished")} == states.keys()
    assert {("0",): 0} == asynchronous.last(v.IN_FLIGHT, v.REPLICA)


def test_a_reward_that_raises_ends_the_training(tmp_path: Path) -> None:
    """The group has failed, what came before is recorded, and the program ends as it does without otel_rl."""
    trained = train(tmp_path, "rlvr", code=1, reward_raises=True, eval_steps=9, max_steps=1)
    assert "theirs" in trained.output
    assert ([], {}) == (trained.traces.orphans, trained.errors)
    assert "failed" == trained.report["state"]
    assert trained.last(v.GROUPS_DROPPED, v.DROPPED_BECAUSE, v.MODE).get(("failed", "eval"), 0) >= 1
    rewards = [span for span in trained.traces.spans if span.name.startswith(v.REWARD)]
    assert rewards and {"ValueError"} == {span.attributes.get(v.ERROR_TYPE) for span in rewards}
