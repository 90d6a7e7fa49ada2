"""slime by its shape: whole traces of synchronous and asynchronous training, their numbers, and planted faults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import otel_rl
from otel_rl import ids
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.slime.hooks import INTEGRATION
from otel_rl.journal.read import Run
from otel_rl.journal.views import SpanView
from tests.fixtures import ATTEMPT, Recording, described
from tests.slime import world

SHAPE = Path(__file__).parent / "shape"
HOOKS = {hook.target: hook for hook in (*INTEGRATION.hooks, *INTEGRATION.arriving)}
Program = Callable[[str, Any], Run]
SAMPLE_OF = world.Sample
SAMPLE = [(v.SAMPLE_TURN, v.TRAJECTORY), (v.REWARD, v.TRAJECTORY)]
GROUP = [(v.SAMPLE_GROUP, v.SAMPLE), (v.TRAJECTORY, v.SAMPLE_GROUP), *SAMPLE]


@pytest.fixture
def train(stubbed: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Return a function that runs a program of slime's shape, recorded."""
    monkeypatch.syspath_prepend(str(SHAPE))
    monkeypatch.setattr(world, "CLOCK", [stubbed.tick])
    stubbed.start("slime")
    remote = wrap(HOOKS["ray.actor:ActorMethod._remote"], world.ActorMethod._remote)
    monkeypatch.setattr(world.ActorMethod, "_remote", remote)
    monkeypatch.setattr(world, "get", wrap(HOOKS["ray:get"], world.get))
    manager = import_module("slime.ray.rollout").RolloutManager
    for hook in INTEGRATION.arriving:
        name = hook.target.partition(".")[2]
        monkeypatch.setattr(manager, name, wrap(hook, vars(manager)[name]))

    def run(name: str, config: Any) -> Run:
        getattr(import_module("train"), name)(config)
        return stubbed.stop()

    yield run
    for name in [name for name in sys.modules if name == "train" or name.partition(".")[0] == "slime"]:
        del sys.modules[name]


def of_step(run: Run, number: int) -> list[SpanView]:
    """Return the spans of the trace of a step, in the order of their begin."""
    spans = sorted(run.spans(None), key=lambda span: (span.start_ns, -span.end_ns))
    (root,) = [one for one in spans if one.name == v.LOOP and one.attributes[v.ITERATION] == number]
    return [one for one in spans if one.trace_id == root.trace_id]


def written(run: Run, name: str) -> list[Any]:
    """Return the spans of a name as they are on disk, in the order of their begin."""
    found = [
        span
        for _, frame in run.frames("traces")
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if span.name == name
    ]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


def names(spans: list[SpanView]) -> list[tuple[str, str]]:
    """Return the name of each span and of its parent."""
    known = {span.span_id: span.name for span in spans}
    return [(span.name, known.get(span.parent_id, "")) for span in spans]


def test_a_synchronous_step(train: Program) -> None:
    """The rollout, the ranks' work and the evaluation lie in the step of their rollout."""
    spans = of_step(train("train", world.config()), 1)
    rank = f"{v.RANK_SPAN} 0"
    assert [
        (v.LOOP, ""), (rank, v.LOOP), (v.SAMPLE, rank), (v.SAMPLE, v.SAMPLE), *GROUP, *GROUP, (v.LOG, v.SAMPLE),
        (v.TRAIN, rank),
        *((name, v.TRAIN) for name in (v.SAMPLE_PROCESS, v.LOGPROB, v.LOGPROB, v.ADVANTAGE, v.TRAIN)),
        (v.MINI_BATCH, v.TRAIN), (v.LOG, v.TRAIN), (v.LOG, v.TRAIN),
        (v.CHECKPOINT, rank), (v.CHECKPOINT, v.CHECKPOINT), (v.SYNC, rank), (v.SYNC, rank), (v.SYNC, v.SYNC),
        (v.EVALUATE, rank), (v.EVALUATE, v.EVALUATE), (v.TRAJECTORY, v.EVALUATE), *SAMPLE,
    ] == names(spans)  # fmt: skip
    kinds = [span.attributes[v.LOGPROB_KIND] for span in spans if span.name == v.LOGPROB]
    synced = [span.attributes[v.SYNC_OPERATION] for span in spans if span.name == v.SYNC]
    assert (["ref", "old"], ["clear_memory", "update_weights", "update_weights"]) == (kinds, sorted(synced))


def test_a_trajectory(train: Program) -> None:
    """Group, tokens, end and policy of the second rollout, whose weights had one update; evaluations have no group."""
    spans = of_step(train("train", world.config()), 1)
    *_, trained, evaluated = [described(span.attributes) for span in spans if span.name == v.TRAJECTORY]
    tokens = {v.TOKENS_PROMPT: 2, v.TOKENS_RESPONSE: 2, v.TOKENS_ENVIRONMENT: 0}
    versions = {v.POLICY_VERSION: 1, v.POLICY_VERSION_END: 1}
    assert {v.MODE: "train", v.GROUP_ID: "3", v.SAMPLE_ID: "3", **tokens, **versions} == trained
    assert {v.MODE: "eval", v.SAMPLE_ID: "0", **tokens, **versions} == evaluated
    turn = next(described(span.attributes) for span in spans if span.name == v.SAMPLE_TURN)
    known = {v.MODE: "train", v.GROUP_ID: "2", v.SAMPLE_ID: "2", v.TOKENS_PROMPT: 2, v.TOKENS_RESPONSE: 2}
    assert {**known, **versions, v.FINISH_REASONS: ("stop",)} == turn
    reward = next(described(span.attributes) for span in spans if span.name == v.REWARD)
    assert {v.MODE: "train", v.GROUP_ID: "2", v.SAMPLE_ID: "2", v.REWARD_FUNCTION: "math"} == reward


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("custom_rm_path", "mine.score", "score"),
        ("custom_rm_path", None, "math"),
        ("reward_spec", SimpleNamespace(custom_rm_path="mine.score", rm_type=None), "score"),
        ("reward_spec", SimpleNamespace(custom_rm_path=None, rm_type="dapo"), "dapo"),
        ("metadata", {"rm_type": "f1"}, "f1"),
    ],
)
def test_a_reward_of_its_own(
    train: Program, monkeypatch: pytest.MonkeyPatch, name: str, own: object, expected: str
) -> None:
    """A sample may say who rewards it: in slime 0.3.1, and otherwise in miles."""

    def sample(group: int, index: int) -> world.Sample:
        made = SAMPLE_OF(group, index)
        setattr(made, name, own)
        return made

    monkeypatch.setattr(world, "Sample", sample)
    spans = of_step(train("train", world.config(num_rollout=1)), 0)
    assert {expected} == {span.attributes[v.REWARD_FUNCTION] for span in spans if span.name == v.REWARD}


@pytest.mark.parametrize(("path", "expected"), [("mine.score", {v.BATCH_SIZE: 1}), (None, {})])
def test_rewards_of_a_group(train: Program, path: str | None, expected: dict[str, int]) -> None:
    """They are one call of a function of the user's, or one for each sample; the group is around them."""
    spans = of_step(train("train", world.config(num_rollout=1, group_rm=True, custom_rm_path=path)), 0)
    reward = next(span for span in spans if span.name == v.REWARD)
    said = {v.MODE: "train", v.GROUP_ID: "0", v.REWARD_FUNCTION: "score" if path else "math"}
    assert ({**said, **expected}, v.SAMPLE_GROUP) == (described(reward.attributes), dict(names(spans))[v.REWARD])


def test_an_asynchronous_step(train: Program) -> None:
    """A rollout that is generated ahead is a trace of its own; the step that trains on it links to it, with its lag."""
    run = train("train_async", world.config(num_rollout=3))
    rank = f"{v.RANK_SPAN} 0"
    step = of_step(run, 1)
    assert [
        (v.LOOP, ""), (rank, v.LOOP), (v.TRAIN, rank),
        *((name, v.TRAIN) for name in (v.SAMPLE_PROCESS, v.LOGPROB, v.LOGPROB, v.ADVANTAGE, v.TRAIN)),
        (v.MINI_BATCH, v.TRAIN), (v.LOG, v.TRAIN), (v.LOG, v.TRAIN), (v.IDLE, rank), (v.SYNC, rank), (v.SYNC, v.SYNC),
    ] == names(step)  # fmt: skip
    assert ["queue"] == [span.attributes[v.IDLE_REASON] for span in step if span.name == v.IDLE]
    lag = {v.POLICY_VERSION: 1, v.LAG_MAX: 1, v.STALE_COUNT: 2}
    assert lag == {key: step[1].attributes.get(key) for key in lag}
    trace = ids.trace_id(ATTEMPT, "rollout", "rollout-1").to_bytes(16, "big")
    apart = [span for span in run.spans(None) if span.trace_id == trace]
    ordered = sorted(apart, key=lambda span: (span.start_ns, -span.end_ns))
    assert [(v.SAMPLE, ""), *GROUP, *GROUP, (v.LOG, v.SAMPLE)] == names(ordered)
    assert {v.MODE: "train", v.SUBMITTED_STEP: "train 0"} == described(ordered[0].attributes)
    assert [trace] == [link.trace_id for link in written(run, v.LOOP)[1].links]


def test_numbers(train: Program) -> None:
    """Ours where the meaning is the same, else slime's own; rewards and samples are counted where all of them are."""
    run = train("train", world.config(num_rollout=1))
    found = {point.name: point.value for point in run.points() if point.name.startswith(("slime.", "rl."))}
    expected = {
        v.RESPONSE_LENGTH: 2, v.RESPONSE_CLIPPED: 0, v.LOSS: 0.5, v.ENTROPY: 1.5, v.KL_POLICY: 0.25,
        v.REWARD_SCORE: 0.5, v.LEARNING_RATE: 1e-6, "slime.train/pg_loss": 0.125, "slime.perf/rollout_time": 1,
        v.SAMPLES: 2, v.REWARD_STD: pytest.approx(0.5**0.5),
    }  # fmt: skip
    assert expected == {name: found[name] for name in expected}
    assert {"slime.train/pg_loss", "slime.perf/rollout_time"} == {name for name in found if name.startswith("slime.")}


def test_supervised_fine_tuning(train: Program) -> None:
    """Its rewards are none: slime sets them to 0."""
    run = train("train", world.config(num_rollout=1, loss_type="sft_loss"))
    names = {point.name for point in run.points()}
    assert {"slime.rollout/raw_reward", v.SAMPLES} == names & {
        "slime.rollout/raw_reward", v.SAMPLES, v.REWARD_SCORE, v.REWARD_STD, v.REWARD_DISTRIBUTION,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [np.float32, torch.tensor])
def test_rewards_that_are_no_python_numbers(train: Program, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Their spread is measured, too."""
    monkeypatch.setattr(world.Sample, "get_reward_value", lambda sample, args: kind(float(sample.index)))
    run = train("train", world.config(num_rollout=1))
    assert [pytest.approx(0.5**0.5)] == [point.value for point in run.points() if point.name == v.REWARD_STD]


def test_samples_without_a_group(train: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no group of equal rewards."""
    monkeypatch.setattr(world, "Sample", lambda group, index: SAMPLE_OF(None, 0))
    run = train("train", world.config(num_rollout=1))
    groups = [span for span in run.spans(None) if span.name == v.SAMPLE_GROUP]
    assert ([None, None], []) == (
        [span.attributes.get(v.GROUP_ID) for span in groups],
        [point for point in run.points() if point.name == v.REWARD_ZERO_STD],
    )


def test_a_partial_rollout(train: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that was aborted goes on: tokens that it had do not count again. One that is complete does nothing."""
    done, aborted = world.Sample.Status.COMPLETED, world.Sample.Status.ABORTED

    def begun(group: int, index: int) -> world.Sample:
        return SAMPLE_OF(group, index, [1, 2, 9], 1, reward=1.0, status=aborted if index else done)

    monkeypatch.setattr(world, "Sample", begun)
    step = of_step(train("train", world.config(num_rollout=1)), 0)
    (one,) = [span.attributes for span in step if span.name == v.TRAJECTORY and span.attributes[v.MODE] == "train"]
    assert ("1", 2, 2, 0) == (
        one[v.SAMPLE_ID], one[v.TOKENS_PROMPT], one[v.TOKENS_RESPONSE], one[v.TOKENS_ENVIRONMENT],
    )  # fmt: skip


def test_a_rollout_of_no_samples(train: Program) -> None:
    """It is counted as such."""
    run = train("train", world.config(num_rollout=1, rollout_batch_size=0))
    assert [0] == [point.value for point in run.points() if point.name == v.SAMPLES]


def test_calls_by_keyword(train: Program) -> None:
    """A loop of one's own may name the arguments, and have stages of its own."""

    def by_keyword(args: Any) -> None:
        program = import_module("train")
        manager, _ = program.create_rollout_manager(args=args, pg=program.create_placement_groups(args=args))
        model, _ = program.create_training_models(args=args, pgs={}, rollout_manager=manager)
        data = world.get(manager.generate.remote(rollout_id=0))
        world.get(model.async_train(rollout_id=0, rollout_data_ref=data))
        with otel_rl.stage("mine"):
            data = world.get(manager.generate.remote(rollout_id=1))
        world.get(model.async_train(rollout_id=1, rollout_data_ref=data))
        program.finish_tracking(args=args)

    import_module("train").by_keyword = by_keyword  # type: ignore[attr-defined]
    run, rank = train("by_keyword", world.config()), f"{v.RANK_SPAN} 0"
    begins = [names(of_step(run, number))[2:4] for number in (0, 1)]
    assert [[(v.SAMPLE, rank), (v.SAMPLE, v.SAMPLE)]] * 2 == begins


def test_another_thread_of_the_driver(train: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gets of Ray ends no wait."""

    def in_thread(config: Any, rollout_data: Any) -> None:
        thread = Thread(target=world.get, args=([],))
        thread.start()
        thread.join()

    monkeypatch.setattr("slime.backends.megatron_utils.actor.compute_advantages_and_returns", in_thread)
    spans = of_step(train("train", world.config(num_rollout=1)), 0)
    ends = {span.name: span.end_ns for span in reversed(spans)}
    assert ends[v.MINI_BATCH] < ends[v.TRAIN]


@pytest.mark.parametrize("error", [OSError("theirs"), KeyboardInterrupt(), SystemExit(3)])
def test_a_wait_that_fails(
    train: Program, stubbed: Recording, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The stage of the driver has the error, which goes on to the program as it is."""

    def fail(config: Any, rollout_data: Any) -> None:
        raise error

    monkeypatch.setattr("slime.backends.megatron_utils.actor.compute_advantages_and_returns", fail)
    with pytest.raises(type(error)) as raised:
        train("train", world.config())
    run = stubbed.stop()
    failed = [span.name for span in run.spans(None) if span.attributes.get(v.ERROR_TYPE) == type(error).__name__]
    assert (error, [v.TRAIN]) == (raised.value, failed)


def test_what_is_trained(train: Program) -> None:
    """The algorithm, the model and the settings of a rank, of which there are two."""
    run = train("train", world.config())
    (root,) = {
        (span.resource[v.ALGORITHM], span.resource[v.MODEL_NAME], span.resource[v.SYSTEM]) for span in run.spans(None)
    }
    assert ("GRPO", "Tiny-1B", "slime") == root
    (setup,) = [span for span in run.spans(None) if v.SETTINGS_STEPS in span.attributes]
    assert {
        v.SETTINGS_LEARNING_RATE: 1e-6, v.SETTINGS_SAMPLES: 1, v.SETTINGS_GROUP: 1, v.SETTINGS_LIMIT: 64,
        v.SETTINGS_UPDATES: 1, v.SETTINGS_STEPS: 2, v.SETTINGS_TEMPERATURE: 1, v.SETTINGS_KL: 0.01,
        v.SETTINGS_GRADIENT: 1,
    } == {key: value for key, value in setup.attributes.items() if key.startswith("rl.settings")}  # fmt: skip


def test_which_slime_this_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package of its name is none."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "slime").mkdir()
    (tmp_path / "slime" / "__init__.py").touch()
    found = [INTEGRATION.installed()]
    for file in ("ray/placement_group.py", "rollout/fully_async_rollout.py", "utils/disk_delta.py"):
        (tmp_path / "slime" / file).parent.mkdir(exist_ok=True)
        (tmp_path / "slime" / file).touch()
        found.append(INTEGRATION.installed())
    assert [None, "0.2", "0.3.0", "0.3.1"] == found
