"""The agentic pipeline in the shape of ROLL, on Ray: what is seen of it, synchronous and asynchronous."""

from __future__ import annotations

from collections import Counter

import pytest

from otel_rl import vocabulary as v
from tests.roll.training import OLD, REAL, REFERENCE, SAVED, SCORES, TRAIN, WEIGHTS, Trained, train

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

RANKS = {"driver 0", "actor_train 0", "actor_train 1", "actor_infer 0", "reference 0", "scheduler 0", "scheduler_val 1",
         "group_queue 0", "group_queue_val 0", "train_env 0", "val_env 0"}  # fmt: skip
BEGIN = "rl.loop [driver]\n  rl.rank 0 [driver]\n    2 x rl.sync offload_states [actor_train]"
EPISODES = """
        {1} x rl.sample.trajectory [{0}]
          2 x rl.sample.turn [{0}]
            rl.idle queue [{0}]
            rl.sample.serve [actor_infer]
          2 x execute_tool game [{0}]"""
TRAJECTORY = """\
rl.sample.trajectory [train_env]
  2 x rl.sample.turn [train_env]
    rl.idle queue [train_env]
    rl.sample.serve [actor_infer]
  2 x execute_tool game [train_env]"""
VALIDATION = "\n    rl.evaluate [driver]\n      rl.sample [scheduler_val]" + EPISODES.format("val_env", 2)
SAMPLING = "\n    rl.sample [driver]\n      rl.sample [scheduler]"
END = "\n    3 x rl.log [driver]"
SHRINK = "\n    rl.sync shrink_sampler [driver]\n      rl.sync shrink_sampler [scheduler]"
SYNC_STEP = "".join((
    BEGIN, "\n    2 x rl.sync suspend [scheduler]", WEIGHTS, SAMPLING, EPISODES.format("train_env", 4),
    "\n    rl.sync offload_states [actor_infer]", REFERENCE, OLD, SCORES, TRAIN, END,
))  # fmt: skip
ASYNC_STEP = "".join((
    BEGIN, "\n    rl.sync suspend [scheduler]\n    rl.sync offload_states [actor_infer]", WEIGHTS, SAMPLING, SHRINK,
    REFERENCE, OLD, SCORES, TRAIN, END,
))  # fmt: skip


@pytest.fixture(scope="module")
def sync(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two steps; a validation in the first."""
    return train(tmp_path_factory.mktemp("sync"), "agentic", track_with="otel")


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps, of which each trains on what the one before has begun; the first group is filtered."""
    changes = {"async_generation_ratio": 1, "max_steps": 3, "eval_steps": 9, "partial_gpu_mode": True}
    return train(tmp_path_factory.mktemp("async"), "agentic", filtered=[[0, 0]], **changes)


def in_validation(step: str) -> str:
    """Add what a validation makes of a step: it is in a thread, beside the sampling, and either may begin first."""
    return step.replace(SAMPLING, VALIDATION + SAMPLING)


def with_validation_first(drawn: str) -> str:
    """Draw a validation before the sampling that it runs beside."""
    assert VALIDATION in drawn, drawn
    return in_validation(drawn.replace(VALIDATION, ""))


@pytest.mark.parametrize("name", ["sync", "asynchronous"])
def test_one_run_that_is_finished(request: pytest.FixtureRequest, name: str) -> None:
    """It holds what all processes did, also of those that Ray kills at the end; each step is one trace."""
    trained: Trained = request.getfixturevalue(name)
    assert RANKS == trained.ranks
    assert ([], [], [], {}) == (trained.traces.orphans, trained.traces.truncated, trained.run.damage, trained.errors)
    steps = {f"rl.loop {number}" for number in range(2 if name == "sync" else 3)}
    assert steps | {"rl.setup", "rl.teardown"} == set(trained.traces.roots) - {v.TRAJECTORY}
    assert ("finished", "roll", "tiny") == tuple(trained.report[key] for key in ("state", "system", "model"))


def test_a_step_is_one_tree(sync: Trained) -> None:
    """With all its trajectories; a validation goes on beside the sampling."""
    assert in_validation(SYNC_STEP) == with_validation_first(sync.step(0))
    assert SYNC_STEP + SAVED == sync.step(1)


def test_what_lies_below_what_is_as_in_roll_itself(sync: Trained) -> None:
    """The shape makes nothing that the real pipeline does not."""
    assert set() == sync.edges() - REAL


def test_trajectories_say_whose_they_are(sync: Trained) -> None:
    """Group and sample as ROLL names them, and how many tokens came from whom."""
    found = [span for span in sync.traces.spans if span.name == v.TRAJECTORY]
    train_ids = {
        f"game_{group}_{step}_{7 + group}_{2 * group + at}" for group in (0, 1) for step in (0, 1) for at in (0, 1)
    }
    by_mode = {
        mode: {s.attributes[v.SAMPLE_ID] for s in found if s.attributes[v.MODE] == mode} for mode in ("train", "eval")
    }
    assert {"train": train_ids, "eval": {"game_0_0_7_0", "game_0_0_7_1"}} == by_mode
    assert all(str(one.attributes[v.SAMPLE_ID]).startswith(f"{one.attributes[v.GROUP_ID]}_") for one in found)
    tokens = {
        tuple(one.attributes[key] for key in (v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT))
        for one in found
    }
    assert {(3, 4, 3)} == tokens
    assert {(): 8} == sync.last(v.SAMPLES)
    assert {("prompt",): 24, ("response",): 32, ("environment",): 24} == sync.last(v.SAMPLE_TOKENS, v.TOKEN_KIND)


def test_numbers_are_recorded_without_another_tracker(sync: Trained) -> None:
    """``track_with: otel`` prints nothing; a number that is logged behind the step's timer is the step's."""
    assert "metrics_tag" not in sync.output
    assert [1, 1] == sync.points(v.REWARD_SCORE)
    assert [4, 4] == sync.points(v.RESPONSE_LENGTH)
    assert [1] == sync.points(v.EVAL_REWARD)
    assert 2 == len(sync.points("roll.time/step_total"))
    assert [0, 1] == [text.count("rl.log [driver]\n    rl.checkpoint") for text in map(sync.step, (0, 1))]


def test_an_asynchronous_step_is_one_tree(asynchronous: Trained) -> None:
    """Without the trajectories: they outlive it."""
    assert in_validation(ASYNC_STEP) == with_validation_first(asynchronous.step(0))
    assert ASYNC_STEP == asynchronous.step(1)
    assert ASYNC_STEP + SAVED == asynchronous.step(2)


def test_trajectories_are_traces_of_their_own(asynchronous: Trained) -> None:
    """Whatever the end of the training leaves of the last ones; in the first step more begin than it needs."""
    assert asynchronous.traces.draw_each(v.TRAJECTORY)[TRAJECTORY] >= 14
    found = asynchronous.traces.roots[v.TRAJECTORY]
    submitted = Counter(str(span.attributes[v.SUBMITTED_STEP]) for span in found)
    assert {"train 0", "train 1", "train 2"} >= submitted.keys()
    assert submitted["train 0"] >= 8
    assert {"train"} == {span.attributes[v.MODE] for span in found}


def test_a_step_links_to_its_trajectories(asynchronous: Trained) -> None:
    """Those of the group that was filtered are in no batch."""
    for step in range(3):
        names = [f"game_0_{step + 1}_7_{env}" for env in (0, 1)] + [f"game_1_{step}_8_{env}" for env in (2, 3)]
        assert [(name, v.TRAJECTORY) for name in names] == [(name, to) for name, _, to in asynchronous.links(step)]
    lags = asynchronous.points(v.SAMPLE_LAG)
    assert [0, 1, 1] == lags


def test_a_filtered_group_is_counted(asynchronous: Trained) -> None:
    """Once, in the process that has the queue."""
    assert {("filtered", "train"): 1} == asynchronous.last(v.GROUPS_DROPPED, v.DROPPED_BECAUSE, v.MODE)
    states = asynchronous.last(v.GROUPS, v.MODE, v.GROUP_STATE)
    assert {("train", "running"), ("train", "finished"), ("eval", "running"), ("eval", "finished")} == states.keys()
