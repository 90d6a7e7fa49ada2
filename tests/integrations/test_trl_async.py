"""TRL: AsyncGRPO on two ranks, with its own worker process: what it did, read back and compared with what it logged."""

from __future__ import annotations

import json
import sys
import time
from itertools import chain
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytest.importorskip("trl")
pytest.importorskip("aiohttp")

from otel_rl import vocabulary as v
from otel_rl.report.build import build_report
from tests.programs.launch import HERE, Trained, launcher, run, start
from tests.programs.recorded import Node, Recorded
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

STEP = """
rl.idle
rl.train.forward
rl.train.backward
rl.train.clip
rl.log
rl.train.optimizer
rl.log
rl.log
  rl.sync
"""


def command(directory: Path, ranks: int, **job: object) -> list[str]:
    """Return what ``python`` has to run to train as ``train_async.py`` says, with the worker recorded too."""
    given = json.dumps({"work": str(directory), "truth": str(directory / "truth-{rank}.json"), "otel": False, **job})
    return ["-m", "otel_rl", "run", "--", sys.executable, *launcher(ranks), str(HERE / "train_async.py"), given]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Recorded]:
    """Four steps whose rollouts call a tool, which fails now and then."""
    directory = tmp_path_factory.mktemp("asynchronous")
    output = run(directory, *command(directory, 2, tools=True))
    truths = [json.loads((directory / f"truth-{rank}.json").read_text()) for rank in range(2)]
    result = Trained(directory, output, truths)
    return result, Recorded(result.runs)


def test_every_stage_of_every_step_is_a_span(trained: tuple[Trained, Recorded]) -> None:
    """On both ranks; the wait is one for the queue, also that of the rank which has none."""
    result, recorded = trained
    assert ([], {}) == (recorded.orphans, recorded.errors())
    for rank in range(2):
        steps = recorded.steps(rank)
        assert [1, 2, 3, 4] == list(steps)
        for number, step in steps.items():
            ends = ["rl.log", "rl.log"] if number == 4 else ["rl.log"]
            assert [*STEP.strip().splitlines(), *ends] == step.outline()
            assert ["queue"] == [idle.attributes[v.IDLE_REASON] for idle in step.find("rl.idle")]
    assert 5 == len(result.truth["sent"])  # TRL transfers the weights once before the first step


def test_groups_are_traces_that_their_steps_link_to(trained: tuple[Trained, Recorded]) -> None:
    """A group lasts from its first trajectory to its rewards; calls of tools are below their trajectory."""
    _, recorded = trained
    roots = {node.span.trace_id: node for node in recorded.roots if node.name == v.SAMPLE_GROUP}
    assert len(roots) > 8
    whole = [root for root in roots.values() if root.find(v.REWARD)]
    assert {(v.TRAJECTORY, v.REWARD)} == {
        tuple(sorted({c.name for c in root.children}, reverse=True)) for root in whole
    }
    assert {4} == {len(root.find(v.TRAJECTORY)) for root in whole}
    below = {child.name for root in roots.values() for t in root.find(v.TRAJECTORY) for child in t.children}
    assert {v.SAMPLE_TURN, "execute_tool look"} == below
    errors = [node.attributes.get(v.ERROR_TYPE) for node in recorded.nodes if node.name == "execute_tool look"]
    assert {None, "LookupError"} == set(errors)
    linked = links(recorded)
    assert [1, 2, 3, 4] == list(linked)
    assert all(linked.values())
    assert set(chain.from_iterable(linked.values())) <= set(roots)


def links(recorded: Recorded) -> dict[int, list[bytes]]:
    """Find the traces that each step links to."""
    found: dict[int, list[bytes]] = {}
    for _, frame in recorded.run.frames("traces"):
        for resource in ExportTraceServiceRequest.FromString(frame.payload).resource_spans:
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                number = {one.key: one.value.int_value for one in span.attributes}.get(v.ITERATION)
                if span.name == v.LOOP and number is not None:
                    found[number] = [link.trace_id for link in span.links]
    return dict(sorted(found.items()))


def test_numbers_are_those_that_trl_logs(trained: tuple[Trained, Recorded]) -> None:
    """Of trainer and worker, under canonical names where one means the same; TRL's ``kl`` is no reference's."""
    result, recorded = trained
    logs = {log["step"]: log for log in result.truth["logs"] if "loss" in log}
    names = {
        "kl": v.KL_POLICY, "entropy": v.ENTROPY, "reward": v.REWARD_SCORE, "clip_ratio/region_mean": v.CLIP_FRACTION,
        "completions/mean_length": v.RESPONSE_LENGTH, "completions/max_length": v.RESPONSE_MAX,
        **{
            name: f"trl.{name}"
            for name in ("sample/staleness_mean", "sample/dropped_stale_total", "batch/pad_frac", "rollout/inflight")
        },
    }  # fmt: skip
    for name, ours in names.items():
        expected = {step: [log[name]] for step, log in logs.items() if name in log}
        assert expected == recorded.values(ours), name
    functions = recorded.values(v.FUNCTION_SCORE, rl_reward_function="digits")
    assert {step: [log["rewards/digits"]] for step, log in logs.items()} == functions
    assert {} == recorded.values(v.KL_REFERENCE)
    assert {} == recorded.values(v.KL_POLICY, rank=1)


def test_samples_are_as_old_as_trl_says(trained: tuple[Trained, Recorded]) -> None:
    """The lag of what a step trains on is among those that TRL saw so far; tokens are those of TRL's batches."""
    result, recorded = trained
    logs = [log for log in result.truth["logs"] if "loss" in log]
    seen = [log["sample/staleness_max"] for log in logs]
    highest = [value for values in recorded.values(v.SAMPLE_LAG_MAX).values() for value in values]
    assert len(seen) == len(highest)
    assert all(lag <= max(seen[: step + 1]) for step, lag in enumerate(highest))
    assert max(seen) == max(highest) > 0
    forwards = [[step.find(v.FORWARD)[0] for step in recorded.steps(rank).values()] for rank in range(2)]
    tokens = [sum(node.attributes[v.TOKENS] for node in both) for both in zip(*forwards, strict=True)]
    assert [log["batch/forwarded_tokens_per_step"] for log in logs] == tokens


def test_what_the_report_says(trained: tuple[Trained, Recorded]) -> None:
    """The rollouts of the worker are requests and samples of the run."""
    result, recorded = trained
    report = build_report(recorded.run, time.time_ns())
    assert ["AsyncGRPO"] == [training.algorithm for training in report.trainings]
    posted = [node.attributes for node in recorded.requests]
    assert posted
    assert all(said[v.SAMPLE_ID].startswith(f"{said[v.GROUP_ID]}.") for said in posted)
    trained_on = sum(log["batch/samples_per_step"] for log in result.truth["logs"] if "loss" in log)
    samples = [log.attributes for log in recorded.run.logs(v.SAMPLE_RECORD)]
    assert len(samples) >= round(trained_on) > 0
    assert all(f"{v.SAMPLE_REWARD}.digits" in said and v.SAMPLE_USED not in said for said in samples)


def test_a_reward_that_raises_is_named(tmp_path: Path) -> None:
    """The worker fails in its first group, whose trace has the exception; TRL hangs then, and is killed here."""
    training = start(tmp_path, *command(tmp_path, 1, failing=True))
    try:
        groups = wait_for(lambda: failed_groups(tmp_path / "runs"))
    finally:
        training.terminate()
        training.communicate()
    assert ["LookupError"] == [node.attributes[v.ERROR_TYPE] for node in groups]
    assert ["LookupError"] == [one.attributes[v.ERROR_TYPE] for node in groups for one in node.find(v.REWARD)]


def failed_groups(runs: Path) -> list[Node]:
    """Return the groups of the only run that failed, as far as it is recorded."""
    if not any(runs.glob("*/*.traces.*")):
        return []
    return [node for node in Recorded(runs).roots if node.name == v.SAMPLE_GROUP and v.ERROR_TYPE in node.attributes]
