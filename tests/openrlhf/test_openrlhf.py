"""OpenRLHF's own code on a CPU, synchronous and asynchronous: what is recorded of it, and that it notices nothing."""

from __future__ import annotations

import re
import time
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_rl import vocabulary as v
from otel_rl.integrations.openrlhf.logged_numbers import CANONICAL
from otel_rl.report.build import build_report
from otel_rl.report.data.finding import Findings
from otel_rl.report.read.span_attributes import ERROR, rank_of
from tests.blamed import blamed
from tests.layers.records import LAYERS, layered
from tests.openrlhf.training import VERSION, download, scalars, train
from tests.programs.signatures import script
from tests.roll.training import Trained

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

EVALUATED = "--eval.steps=2", "--eval.n_samples_per_prompt=2"
FILTERED = "--algo.dynamic_filtering_enable", "--data.max_samples=13"
SAMPLED = "train/dynamic_filtering_pass_rate", "train/response_length", "train/total_length", "train/truncated"
PLANTED = Path(__file__).with_name("planted.py")
REWARD = f"--reward.remote_url={Path(__file__).with_name('reward.py')}"
ROLLOUT = """
{0} x rl.sample.group [rollout]
  {1} x rl.sample.trajectory [rollout]
    rl.sample.turn [rollout]
    rl.reward reward_func [rollout]"""
UPDATE = """
    rl.sample.process [driver]
    2 x rl.logprob old [actor]
      2 x rl.logprob.forward [actor]
    2 x rl.logprob ref [reference]
      2 x rl.logprob.forward [reference]
    3 x rl.idle workers [driver]
    rl.advantage [driver]
    rl.train [driver]
      2 x rl.train actor [actor]
        3 x rl.idle data [actor]
        2 x rl.train.forward [actor]
        2 x rl.train.backward [actor]
        rl.train.optimizer [actor]
    rl.sync broadcast_to_vllm [driver]
      2 x rl.sync broadcast_to_vllm [actor]"""
ROOT = "rl.loop [driver]\n  rl.rank 0 [driver]"
LOGGED = "\n    rl.log [driver]"
SAVED = "\n    rl.checkpoint [driver]\n      2 x rl.checkpoint [actor]"
WAITS = re.compile(r"^ *(\d+ x )?rl\.idle data \[driver\]\n?", re.MULTILINE)
"""Of the data loader: how often depends on how many prompts it gives at once."""


def below(depth: int, text: str) -> str:
    """Indent a tree."""
    return text.replace("\n", "\n" + "  " * depth)


def unordered(drawn: str) -> list[str]:
    """Return the lines of a tree, each with those above it, in one order: ranks and trainer work at the same time."""
    above: list[str] = []
    found = []
    for line in WAITS.sub("", drawn + "\n").rstrip("\n").split("\n"):
        label = line.lstrip(" ")
        above[(len(line) - len(label)) // 2 :] = [label]
        found.append(" > ".join(above))
    return sorted(found)


def told(trained: Trained) -> Findings:
    """Return what the report finds."""
    return build_report(trained.run, time.time_ns()).findings


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenRLHF as it is published."""
    return download(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sync(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps on two ranks; a prompt is filtered; an evaluation and a checkpoint in the second."""
    directory = tmp_path_factory.mktemp("sync")
    held_out = f"--eval.dataset={directory}/files/held_out.jsonl"
    return train(wheel, directory, *EVALUATED, held_out, REWARD, *FILTERED, "--ckpt.save_steps=2")


@pytest.fixture(scope="module")
def asynchronous(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three steps; an evaluation after the second."""
    directory = tmp_path_factory.mktemp("async")
    held_out = f"--eval.dataset={directory}/files/held_out.jsonl"
    return train(wheel, directory, "--train.async_enable", *EVALUATED, held_out)


@pytest.fixture(scope="module")
def planted(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two steps and a third that fails, on two engines: one is slow, prompts are filtered, a reward raises."""
    agent, small = f"--train.agent_func_path={PLANTED}", ("--algo.kl.init_coef=0", "--actor.num_gpus_per_node=1")
    more = "--vllm.num_engines=2", "--algo.dynamic_filtering_enable", "--data.max_samples=24"
    return train(wheel, tmp_path_factory.mktemp("planted"), agent, *small, *more, code=1)


def test_every_target_is_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Of its modules, and of the classes that Ray sends by value."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    (package,) = tmp_path.glob("*/purelib")
    assert script.targets("openrlhf") == sorted(script.signatures("openrlhf", package))


@pytest.mark.parametrize("name", ["sync", "asynchronous"])
def test_one_run_that_is_finished(request: pytest.FixtureRequest, name: str) -> None:
    """It holds what all processes did; each step is one trace."""
    trained: Trained = request.getfixturevalue(name)
    others = {"generator 0"} if name == "asynchronous" else set()
    assert (
        others
        | {
            *("driver 0", "actor 0", "actor 1", "reference 0", "reference 1", "rollout 0"),
        }
        == trained.ranks
    )
    assert ([], [], {}) == (trained.traces.orphans, trained.run.damage, trained.errors)
    steps = {f"rl.loop {number}" for number in (1, 2, 3)}
    assert steps | {v.SETUP, v.TEARDOWN} == set(trained.traces.roots) - {v.SAMPLE, v.EVALUATE}
    known = ("state", "system", "system_version", "algorithm", "model")
    assert ["finished", "openrlhf", VERSION, "GROUP_NORM", "model"] == [trained.report[key] for key in known]


def test_a_step_is_one_tree(sync: Trained) -> None:
    """Of trainer, ranks and rollout engine. Where a prompt is filtered, another one takes its place."""
    trees = [unordered(sync.traces.draw(f"rl.loop {number}")) for number in (1, 2, 3)]
    evaluated = "\n    rl.evaluate [driver]\n      rl.sample [driver]" + below(4, ROLLOUT.format(2, 2))
    after = [LOGGED, SAVED + below(1, LOGGED) + evaluated + below(1, LOGGED) + SAVED, LOGGED]
    expected = [
        [
            unordered(f"{ROOT}\n    rl.sample [driver]{below(3, ROLLOUT.format(groups, 4))}{UPDATE}{end}")
            for groups in (4, 5)
        ]
        for end in after
    ]
    assert [1, 1, 1] == [tuple(map(tree.__eq__, both)).count(True) for tree, both in zip(trees, expected, strict=True)]
    assert 1 == sum(tree == both[1] for tree, both in zip(trees, expected, strict=True))


def test_an_asynchronous_step_is_one_tree(asynchronous: Trained) -> None:
    """Its batch is a trace of its own, and so is an evaluation."""
    queue = "\n    rl.idle queue [driver]"
    trees = [unordered(asynchronous.traces.draw(f"rl.loop {number}")) for number in (1, 2)]
    assert [unordered(ROOT + UPDATE + LOGGED + queue)] * 2 == trees
    batch = unordered("rl.sample [generator]" + below(1, ROLLOUT.format(4, 4)))
    assert [(batch, 3)] == [(unordered(tree), n) for tree, n in asynchronous.traces.draw_each(v.SAMPLE).items()]
    evaluated = asynchronous.traces.draw(v.EVALUATE)
    assert ROLLOUT.format(2, 2).count("\n") == sum("[rollout]" in line for line in evaluated.split("\n"))


def test_a_step_links_to_its_batch(asynchronous: Trained) -> None:
    """Which is told by its place in the queue."""
    batches = {span.span_id: span for span in asynchronous.traces.roots[v.SAMPLE]}
    linked = {}
    for _, frame in asynchronous.run.frames("traces"):
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans:
            for span in (span for scope in resource.scope_spans for span in scope.spans if span.links):
                linked[span.trace_id] = [link.span_id in batches for link in span.links]
    assert [[True]] * 3 == list(linked.values())


def test_a_filtered_prompt_is_counted(sync: Trained) -> None:
    """It is sampled, and no step trains on it."""
    assert {("filtered", "train"): 1} == sync.last(v.GROUPS_DROPPED, v.DROPPED_BECAUSE, v.MODE)
    assert {(): 48} == sync.last(v.SAMPLES)


def test_tokens_that_are_sampled_are_trained(sync: Trained) -> None:
    """Each once, by the two ranks together."""
    sampled, trained = sync.last(v.SAMPLE_TOKENS, v.TOKEN_KIND), sync.last(v.TRAIN_TOKENS, v.TOKEN_KIND)
    assert 0 == sampled.pop(("environment",))
    assert sampled == {key: trained[key] for key in sampled}
    turns = [span for span in sync.traces.spans if span.name == v.SAMPLE_TURN]
    assert Counter({("train",): 52, ("eval",): 4}) == Counter((span.attributes[v.MODE],) for span in turns)


def test_numbers_are_those_that_openrlhf_logs(sync: Trained) -> None:
    """Under our name where the meaning is the same, else under OpenRLHF's; once a step."""
    logged = scalars(sync)
    train = {key.removeprefix("train/"): values for key, values in logged.items() if key.startswith("train/")}
    ours = {key: name for key, (name, _) in CANONICAL.items()}
    found = {key: sync.points(ours.get(key, f"openrlhf.{key}")) for key in train}
    assert {key: [pytest.approx(one, rel=1e-6) for one in values] for key, values in train.items()} == found
    assert sync.points(v.EVAL_REWARD) == [pytest.approx(one, rel=1e-6) for one in logged["eval/eval_default_pass1"]]
    assert sync.points(v.REWARD_STD) == [pytest.approx(one) for one in train["rollout/reward_std"]]


def test_the_log_has_its_four_layers(sync: Trained) -> None:
    """A line of each step, and the samples that it trains on."""
    lines = {event: layered(sync.run, event) for event in LAYERS}
    assert {event: 48 if event == v.SAMPLE_RECORD else 3 for event in LAYERS} == {
        k: len(one) for k, one in lines.items()
    }
    groups = Counter(one.attributes[v.GROUP_ID] for one in lines[v.SAMPLE_RECORD])
    assert Counter({f"{step}-{group}": 4 for step in (1, 2, 3) for group in range(4)}) == groups


def test_openrlhf_notices_nothing(wheel: Path, sync: Trained, tmp_path: Path) -> None:
    """A plain training samples the same; what it trains depends on the order in which answers arrive."""
    held_out = f"--eval.dataset={tmp_path}/files/held_out.jsonl"
    plain = train(wheel, tmp_path, *EVALUATED, held_out, REWARD, *FILTERED, "--ckpt.save_steps=2", is_recorded=False)
    expected, found = scalars(plain), scalars(sync)
    assert expected.keys() == found.keys()
    same = [name for name in expected if name.startswith(("train/rollout/", "eval/")) or name in SAMPLED]
    assert {name: pytest.approx(expected[name]) for name in same} == {name: found[name] for name in same}


def test_a_slow_engine_is_named(planted: Trained) -> None:
    """By its trajectories."""
    calls = (planted.directory / "calls").read_text().split("\n")
    ranks = {span.resource[v.PROCESS_PID]: rank_of(span.resource) for span in planted.traces.spans}
    slow = ranks[int(calls[0].removeprefix("engine "))]
    assert v.TRAJECTORY == blamed(told(planted).time)[slow]


def test_a_reward_that_raises_is_named(planted: Trained) -> None:
    """Beside the exception that ends the step: of a trainer that finds no reward, as without recording."""
    assert "AttributeError: 'NoneType' object has no attribute" in planted.output
    failed = {(span.name, span.attributes[v.ERROR_TYPE]) for span in planted.traces.spans if span.status_code == ERROR}
    assert {(v.REWARD, "LookupError"), (v.LOOP, "AttributeError"), (f"{v.RANK_SPAN} 0", "AttributeError")} <= failed
    found = {one.rule: (one.rank and one.rank.role, one.step, one.values["error"]) for one in told(planted).health}
    assert ("rollout", 3, "LookupError") == found["call_failed"]
    assert ("driver", 3, "AttributeError") == found["failed"]


def test_prompts_that_are_filtered_are_named(planted: Trained) -> None:
    """As a share of all that were sampled, whose groups have no names."""
    (found,) = [one for one in told(planted).learn if one.rule == "groups_dropped"]
    groups = sum(span.name == v.SAMPLE_GROUP for span in planted.traces.spans)
    dropped = int(planted.last(v.GROUPS_DROPPED)[()])
    assert {"share": dropped / groups, "of": groups, "reasons": [f"{dropped} filtered"]} == found.values
