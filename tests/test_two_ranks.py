"""Two ranks of real GRPO under torchrun: one trace for both, who is stuck where, and what a restart changes."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.journal.read import JournalNotFound, OpenView, open_run
from tests.programs.launch import Trained, start, train, training
from tests.programs.recorded import COLLECTIVE, Recorded, outside, overlapping
from tests.waiting import patience

pytestmark = pytest.mark.slow

STEPS = 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Recorded]:
    """Six steps on two ranks, old log-probabilities, an asynchronous reward, an evaluation and a checkpoint."""
    config = {
        "max_steps": STEPS, "steps_per_generation": 2, "eval_strategy": "steps", "eval_steps": 3,
        "save_strategy": "steps", "save_steps": 4,
    }  # fmt: skip
    result = train(tmp_path_factory.mktemp("two"), ranks=2, config=config, rewards=["digits", "short", "ends"])
    return result, Recorded(result.runs)


def test_both_ranks_of_a_step_are_one_trace(trained: tuple[Trained, Recorded]) -> None:
    """One root, made by rank 0, and a container for each rank below it; no orphan and no error."""
    result, recorded = trained
    assert ([], {}, []) == (recorded.orphans, recorded.errors(), recorded.run.damage)
    assert [v.SETUP, *[v.LOOP] * STEPS, v.TEARDOWN] == [root.name for root in recorded.roots]
    for root in recorded.roots:
        assert [f"{v.RANK_SPAN} 0", f"{v.RANK_SPAN} 1"] == sorted(child.name for child in root.children)
        assert 0 == root.rank
        assert {root.span.trace_id} == {node.span.trace_id for node in root.walk()}
        assert all(node.rank == container.rank for container in root.children for node in container.walk())
    assert len(recorded.nodes) == sum(len(list(root.walk())) for root in recorded.roots)
    assert [list(range(1, STEPS + 1))] * 2 == [truth["steps"] for truth in result.truths]
    assert 1 == len({node.span.resource[v.ATTEMPT_ID] for node in recorded.nodes})
    assert 2 == len({node.span.resource[v.SERVICE_INSTANCE_ID] for node in recorded.nodes})
    assert {0, 1} == {node.span.resource[v.LOCAL_RANK] for node in recorded.nodes}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ranks_stages_are_those_of_a_single_process(trained: tuple[Trained, Recorded], rank: int) -> None:
    """In every step the same stages as often on both ranks, none overlapping, and the steps tile the loop."""
    _, recorded = trained
    steps = recorded.steps(rank)
    other = recorded.steps(1 - rank)
    rollout = Counter([v.SAMPLE, f"{v.LOGPROB} old", f"{v.LOGPROB} ref", v.REWARD, v.ADVANTAGE])
    update = Counter([v.IDLE, v.FORWARD, v.BACKWARD, v.CLIP, v.OPTIMIZER])
    for number, step in steps.items():
        uncounted = (COLLECTIVE, v.LOG, v.LOG_GATHER, v.SAMPLE_PROCESS)
        stages = Counter(child.label for child in step.children if child.name not in uncounted)
        expected = update + (rollout if number % 2 else Counter())
        expected += Counter([v.EVALUATE] if number % 3 == 0 else [])
        assert expected + Counter([v.CHECKPOINT] if number in (4, STEPS) else []) == stages, number
        assert step.outline() == other[number].outline(), number
        assert [] == [names for node in step.walk() for names in (*overlapping(node), *outside(node))]
    assert all(a.span.end_ns == b.span.start_ns for a, b in pairwise(steps.values()))


@pytest.mark.parametrize("rank", [0, 1])
def test_tokens_and_counters_are_the_ranks_own(trained: tuple[Trained, Recorded], rank: int) -> None:
    """What this rank's reward function saw; the evaluation is in no counter."""
    result, recorded = trained
    rollouts = result.truths[rank]["rollouts"]
    sampled = [node for node in recorded.nodes if node.name == v.SAMPLE and node.rank == rank]
    sampled.sort(key=lambda node: node.span.start_ns)
    expected = [(sum(map(len, r["prompts"])), sum(map(len, r["completion_ids"])), r["mode"]) for r in rollouts]
    keys = (v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.MODE)
    assert expected == [tuple(node.attributes[key] for key in keys) for node in sampled]
    training_only = [row for row in expected if row[2] == "train"]
    assert sum(row[1] for row in training_only) == recorded.total(v.SAMPLE_TOKENS, rank, rl_token_kind="response")
    assert sum(row[0] for row in training_only) == recorded.total(v.TRAIN_TOKENS, rank, rl_token_kind="prompt")
    assert STEPS == recorded.total(v.TRAIN_STEPS, rank)


def test_what_is_global_is_there_once(trained: tuple[Trained, Recorded]) -> None:
    """TRL's reduced metrics and the norm come from rank 0, loss and step time from each rank, as logged."""
    result, recorded = trained
    logs = {entry["step"]: entry for entry in result.truth["logs"] if "loss" in entry}
    assert logs.keys() == set(range(1, STEPS + 1))
    points = list(recorded.run.points())
    assert {0} == {p.resource[v.RANK] for p in points if p.attributes.get(v.SCOPE_KEY) == "global"}
    assert {0, 1} == {p.resource[v.RANK] for p in points if p.name == f"{v.TRL}step_time"}
    rewards = recorded.values(v.REWARD_SCORE, rl_scope="global")
    assert {n: e["reward"] for n, e in logs.items() if "reward" in e} == pytest.approx(
        {n: x for n, (x,) in rewards.items()}
    )
    norms = recorded.values(v.GRAD_NORM)
    assert {n: e["grad_norm"] for n, e in logs.items()} == pytest.approx({n: x for n, (x,) in norms.items()}, rel=1e-5)
    losses = [recorded.values(v.LOSS, rank) for rank in (0, 1)]
    mean = {n: (losses[0][n][0] + losses[1][n][0]) / 2 for n in logs}
    assert {n: e["loss"] for n, e in logs.items()} == pytest.approx(mean, abs=1e-6)
    for rank in (0, 1):
        lengths = {n: (s.span.end_ns - s.span.start_ns) / 1e9 for n, s in recorded.steps(rank).items()}
        assert lengths == pytest.approx({n: x for n, (x,) in recorded.values(v.STEP_TIME, rank).items()}, abs=1e-9)


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_lie_in_their_stages(trained: tuple[Trained, Recorded], rank: int) -> None:
    """TRL's gathers have a place and a name, and each stage says how many there were and how long they took."""
    _, recorded = trained
    step = recorded.steps(rank)[1]
    operations = Counter(
        (node.name, child.attributes[v.COMM_OPERATION])
        for node in (step, *step.children)
        for child in node.children
        if child.name == COLLECTIVE
    )
    assert operations[v.SAMPLE, "gather"] >= 3
    assert operations[v.REWARD, "gather"] == 1
    assert operations[v.LOG_GATHER, "gather_object"] >= 2
    placed = {name for name, _ in operations}
    assert placed <= {v.SAMPLE, v.SAMPLE_PROCESS, v.REWARD, v.LOG_GATHER, v.FORWARD, v.BACKWARD, v.ADVANTAGE, step.name}
    assert 2 == operations[step.name, "all_gather"]  # of the loss, before the trainer logs it
    for stage in step.children:
        inside = [child.span for child in stage.children if child.name == COLLECTIVE]
        assert len(inside) == stage.attributes.get(v.COMM_COUNT, 0) - stage.attributes.get(v.COMM_OMITTED, 0)
        if inside and v.COMM_OMITTED not in stage.attributes:
            seconds = sum((span.end_ns - span.start_ns) / 1e9 for span in inside)
            assert seconds == pytest.approx(stage.attributes[v.COMM_TIME], abs=1e-8)
    assert [] == [stage.name for stage in step.children if stage.attributes.get(v.COMM_HIDDEN)]
    for backward in (stage for stage in step.children if stage.name == v.BACKWARD):
        assert 0 < backward.attributes[v.COMM_WAIT] < (backward.span.end_ns - backward.span.start_ns) / 1e9


# --- a rank that hangs ------------------------------------------------------------------------------------------------


STUCK = {
    0: sorted([v.LOOP, f"{v.RANK_SPAN} 0", v.REWARD, COLLECTIVE]),
    1: sorted([f"{v.RANK_SPAN} 1", v.REWARD, f"{v.REWARD} hanging"]),
}


def test_a_hung_rank_is_named_while_it_hangs(tmp_path: Path) -> None:
    """Rank 1 sleeps in a reward function, rank 0 waits in a collective: the journal says so from outside."""
    go = tmp_path / "go"
    command = training(tmp_path, 2, rewards=["hanging"], config={"max_steps": 4})
    process = start(tmp_path, *command, GO=str(go))
    try:
        inside = wait_until_stuck(tmp_path / "runs")
    finally:
        go.touch()
        output, _ = process.communicate()
    assert 0 == process.returncode, output[-4000:]
    (waiting,) = [stage for stage in inside[0] if stage.name == COLLECTIVE]
    assert ("gather", "default_pg", 2) == tuple(
        waiting.attributes[key] for key in (v.COMM_OPERATION, v.COMM_GROUP, v.COMM_GROUP_SIZE)
    )
    assert waiting.attributes[v.COMM_SEQUENCE] > 0
    assert {True} == {stage.alive for stages in inside.values() for stage in stages}
    assert 1 == len({stage.trace_id for stages in inside.values() for stage in stages})
    recorded = Recorded(tmp_path / "runs")
    assert ([], []) == (recorded.orphans, recorded.run.open_stages())
    assert [1, 2, 3, 4] == list(recorded.steps(0)) == list(recorded.steps(1))


def wait_until_stuck(runs: Path) -> dict[int, list[OpenView]]:
    """Read the journal again and again until rank 1 is in the function that hangs and rank 0 waits for it."""
    for _ in patience():
        stages = open_stages(runs)
        inside = {rank: [stage for stage in stages if stage.resource[v.RANK] == rank] for rank in (0, 1)}
        names = {rank: sorted(stage.name for stage in found) for rank, found in inside.items()}
        if names == STUCK:  # what is open is journaled before what ended until then: in between both seem open
            return inside
    raise AssertionError(f"no rank hung: {names}")


def open_stages(runs: Path) -> list[OpenView]:
    """Read what is open in the only run, if there is one yet."""
    for directory in runs.glob("[!.]*"):
        try:
            return open_run(directory).open_stages()
        except JournalNotFound:
            return []
    return []


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_an_elastic_restart_is_another_attempt(tmp_path: Path) -> None:
    """Rank 1 exits once: both attempts are recorded, the second starts at step 1, and they share no trace.

    Without the variable, and with a static rendezvous, torch 2.15 itself cannot restart gloo ranks: the store of the
    first attempt answers with addresses of the dead.
    """
    launch = ("--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    env = {"OTEL_RL_RUN_ID": "elastic", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    train(tmp_path, ranks=2, launch=launch, rewards=["exits_once"], env=env)
    run = open_run(tmp_path / "runs" / "elastic")
    spans = list(run.closed_spans([v.ITERATION]))
    attempts: dict[str, list[int]] = {}
    for span in sorted(spans, key=lambda span: span.start_ns):
        if span.name == v.LOOP:
            attempts.setdefault(str(span.resource[v.ATTEMPT_ID]), []).append(int(span.attributes[v.ITERATION]))
    assert [[1, 2, 3], [1, 2, 3, 4]] == list(attempts.values())
    traces = [{span.trace_id for span in spans if span.resource.get(v.ATTEMPT_ID) == attempt} for attempt in attempts]
    assert not traces[0] & traces[1]
    assert set(attempts) == {span.resource.get(v.ATTEMPT_ID) for span in spans}
    ids = {span.span_id for span in spans}
    orphans = [span for span in spans if span.parent_id and span.parent_id not in ids]
    assert {f"{v.RANK_SPAN} 1"} >= {span.name for span in orphans}  # its tear-down, which rank 0 did not live to see
    assert not {span.trace_id for span in orphans} & {span.trace_id for span in spans if span.name == v.LOOP}
    assert 4 == sum(not journal.identity.is_sidecar for journal in run.journals)
    assert not any(math.isnan(point.value) for point in run.points(v.STEP_TIME))
