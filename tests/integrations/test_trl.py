"""TRL: GRPO and RLOO as they really train, read back from the journal and compared with what the program itself saw."""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.integrations.trl.trainer_metrics import CANONICAL, PER_RANK
from otel_rl.report.build import build_report
from tests.programs.launch import Trained, Trainings
from tests.programs.recorded import Node, Recorded, outside, overlapping

pytestmark = pytest.mark.slow

SCORED = """
rl.reward
  rl.reward digits
  rl.reward short
  rl.reward ends
rl.advantage
rl.log.gather
rl.sample.process
"""
LOGPROBS = "rl.logprob old\nrl.logprob ref\n"
SAMPLED = """
rl.sample
  rl.sample.tokenize
  rl.sample.generate
  rl.sample.decode
rl.sample.process
"""
ROLLOUT = SAMPLED.lstrip() + LOGPROBS + SCORED.lstrip()
UPDATE = """
rl.train.forward
rl.train.backward
rl.train.clip
rl.train.optimizer
rl.log
"""
"""Of the callbacks around a step somebody listens to the last alone."""
LOGGED = "rl.log\n"
MEMORY = {v.RSS_START, v.RSS_END, v.VMS_START, v.VMS_END}
TOKENS = {v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE}
PARTS = [v.SAMPLE_TOKENIZE, v.SAMPLE_GENERATE, v.SAMPLE_DECODE]
KEYS: dict[str, set[str]] = {
    v.IDLE: {v.IDLE_REASON},
    v.SAMPLE: {v.MODE, v.ROLLOUT_ID, v.POLICY_VERSION, v.SAMPLE_BATCH_SIZE, v.GROUP_SIZE, v.TOKENS_PADDING}
    | {v.REQUEST_COUNT, v.REQUESTS_OMITTED, v.BUBBLE, v.KV_BYTES_PEAK_SPAN}
    | TOKENS,
    **{key: {v.MODE} for key in (*PARTS, v.SAMPLE_PROCESS, v.LOG_GATHER)},
    v.LOGPROB: {v.MODE, v.LOGPROB_KIND, v.BATCH_SIZE, v.ROLLOUT_ID, v.TOKENS, v.TOKENS_PADDING},
    v.REWARD: {v.MODE, v.BATCH_SIZE, v.TOKENS},
    v.CHECKPOINT: {v.CHECKPOINT_FORMAT, v.CHECKPOINT_BYTES},
    v.ADVANTAGE: {v.MODE, v.BATCH_SIZE},
    v.FORWARD: {v.MODE, v.TRAIN_BATCH_SIZE, v.GROUP_SIZE, v.POLICY_VERSION, v.ROLLOUT_ID, v.TOKENS_PADDING} | TOKENS,
    v.OPTIMIZER: {v.OPTIMIZER_SKIPPED},
    f"{v.RANK_SPAN} 0": {v.ITERATION, v.LOOP_NAME, v.CPU_TIME, v.RSS_PEAK, v.RSS_PEAK_EXACT},
    v.LOOP: {v.ITERATION, v.LOOP_NAME},
}
"""What a stage says besides memory."""


def lines(*texts: str, below: int = 0) -> list[str]:
    """Join outlines, indented."""
    return ["  " * below + line for text in texts for line in text.strip("\n").splitlines()]


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def trained(request: pytest.FixtureRequest, trainings: Trainings) -> tuple[Trained, Recorded]:
    """Two updates to a rollout, three reward functions, an evaluation and a checkpoint after every second step."""
    config = {"steps_per_generation": 2, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"}
    result = trainings.train(
        f"whole-{request.param}",
        trainer=request.param,
        config={**config, "save_steps": 2, "num_generations_eval": 2}
        if request.param == "grpo"
        else {**config, "save_steps": 2},
        rewards=["digits", "short", "ends"],
    )
    return result, Recorded(result.runs)


def test_every_stage_of_every_step_is_a_span(trained: tuple[Trained, Recorded]) -> None:
    """Steps with and without a rollout, with evaluation and checkpoint, have exactly their stages in this order."""
    result, recorded = trained
    batches = [rollout["mode"] for rollout in result.truth["rollouts"] if rollout["step"] == 3].count("eval")
    one_batch = lines("rl.idle", ROLLOUT, "rl.train.forward", below=1)
    evaluation = ["rl.evaluate", *one_batch * batches, *lines(LOGGED, below=1)]
    evaluation.insert(1, "  rl.idle")  # accelerate asks for the second batch before it gives the first
    rolled = lines("rl.idle", ROLLOUT, UPDATE)
    reused = lines("rl.idle", UPDATE)
    assert {
        1: [*rolled, "rl.log"],
        2: [*reused, "rl.log", *evaluation, "rl.checkpoint"],
        3: [*rolled, "rl.log"],
        4: [*reused, "rl.log", *evaluation, "rl.checkpoint", "rl.log"],
    } == {number: step.outline() for number, step in recorded.steps().items()}


def test_the_structure_is_whole(trained: tuple[Trained, Recorded]) -> None:
    """One root per step, no orphan, nothing outside its parent, nothing overlaps, and the steps tile the loop."""
    result, recorded = trained
    steps = list(recorded.steps().values())
    assert [v.SETUP, *[v.LOOP] * 4, v.TEARDOWN] == [root.name for root in recorded.roots]
    assert ([], {}) == (recorded.orphans, recorded.errors())
    assert [] == [names for node in recorded.nodes for names in (*overlapping(node), *outside(node))]
    edges = [(node.span.start_ns, node.span.end_ns) for node in recorded.roots]
    assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
    assert edges[1:-1] == [(step.span.start_ns, step.span.end_ns) for step in steps]
    assert result.truth["steps"] == list(recorded.steps())
    assert len(recorded.roots) == len({node.span.trace_id for node in recorded.nodes})


def test_attributes_are_complete(trained: tuple[Trained, Recorded]) -> None:
    """Each stage has exactly the attributes that belong to it, memory at both ends among them."""
    _, recorded = trained
    steps = [root for root in recorded.roots if root.name == v.LOOP]
    for node in (node for step in steps for node in step.walk()):
        function = {v.MODE, v.REWARD_FUNCTION} if node.name.startswith(f"{v.REWARD} ") else set()
        of_rollout = {v.REQUESTS_CLIPPED, v.TAIL_10, v.TAIL_5, v.TAIL_1} & set(node.attributes)
        assert KEYS.get(node.name, set()) | function | of_rollout | MEMORY == set(node.attributes), node.name


def test_token_counts_are_those_of_the_token_ids(trained: tuple[Trained, Recorded]) -> None:
    """Every rollout's prompt and response tokens, of training and of evaluation, are what the reward function saw."""
    result, recorded = trained
    sampled = sorted((node for node in recorded.nodes if node.name == v.SAMPLE), key=lambda node: node.span.start_ns)
    expected = [
        {
            v.MODE: rollout["mode"],
            v.POLICY_VERSION: rollout["step"] - 1,
            v.SAMPLE_BATCH_SIZE: len(rollout["completion_ids"]),
            v.TOKENS: sum(map(len, rollout["prompts"])) + sum(map(len, rollout["completion_ids"])),
            v.TOKENS_PROMPT: sum(map(len, rollout["prompts"])),
            v.TOKENS_RESPONSE: sum(map(len, rollout["completion_ids"])),
        }
        for rollout in result.truth["rollouts"]
    ]
    assert expected == [{key: node.attributes[key] for key in expected[0]} for node in sampled]
    assert {"train", "eval"} == {rollout["mode"] for rollout in result.truth["rollouts"]}


def test_requests_are_the_samples(trained: tuple[Trained, Recorded]) -> None:
    """Each below its rollout, with the tokens that the reward function saw and the policy; all are counted."""
    result, recorded = trained
    rollouts = {node.span.span_id: node for node in recorded.nodes if node.name == v.SAMPLE}
    found: dict[bytes, list[tuple[Any, ...]]] = {}
    for node in sorted(recorded.requests, key=lambda node: int(node.attributes[v.SAMPLE_ID].rpartition(".")[2])):
        keys = (v.INPUT_TOKENS, v.OUTPUT_TOKENS, v.POLICY_VERSION)
        found.setdefault(node.span.parent_id, []).append(tuple(node.attributes[key] for key in keys))
    ordered = sorted(found, key=lambda span_id: rollouts[span_id].span.start_ns)
    assert [
        [
            (len(prompt), len(ids), rollout["step"] - 1)
            for prompt, ids in zip(rollout["prompts"], rollout["completion_ids"], strict=True)
        ]
        for rollout in result.truth["rollouts"]
    ] == [found[span_id] for span_id in ordered]
    samples = sum(len(rollout["prompts"]) for rollout in result.truth["rollouts"])
    for metric in (v.REQUEST_DURATION, v.TTFT):
        assert samples == sum(point.count for point in recorded.last(metric))


def test_forwards_consume_what_was_rolled_out(trained: tuple[Trained, Recorded]) -> None:
    """The two updates of a rollout name it, together have its tokens, and the later one links to its span."""
    _, recorded = trained
    steps = recorded.steps()
    for first, second in ((1, 2), (3, 4)):
        (sample,) = [node for node in steps[first].children if node.name == v.SAMPLE]
        forwards = [node for n in (first, second) for node in steps[n].children if node.name == v.FORWARD]
        assert [sample.attributes[v.ROLLOUT_ID]] * 2 == [node.attributes[v.ROLLOUT_ID] for node in forwards]
        for key in TOKENS:
            assert sample.attributes[key] == sum(node.attributes[key] for node in forwards)
        assert [4, 4] == [node.attributes[v.TRAIN_BATCH_SIZE] for node in forwards]
        assert ([], [sample.span.span_id]) == (links(recorded, steps[first]), links(recorded, steps[second]))


def links(recorded: Recorded, node: Node) -> list[bytes]:
    """Read the span ids that a span links to."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return [
        link.span_id
        for _, frame in recorded.run.frames("traces")
        for group in ExportTraceServiceRequest.FromString(frame.payload).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
        if span.span_id == node.span.span_id
        for link in span.links
    ]


def test_old_and_reference_log_probabilities_count_the_rollout(trained: tuple[Trained, Recorded]) -> None:
    """Both handle the tokens of their rollout, and know whose they are."""
    _, recorded = trained
    parents = [node for node in recorded.nodes if any(child.name == v.SAMPLE for child in node.children)]
    for parent in parents:
        rollout = None
        for node in parent.children:
            rollout = node if node.name == v.SAMPLE else rollout
            if node.name == v.LOGPROB and rollout is not None:
                keys = (v.ROLLOUT_ID, v.TOKENS, v.MODE)
                assert [rollout.attributes[key] for key in keys] == [node.attributes[key] for key in keys]
                assert rollout.attributes[v.SAMPLE_BATCH_SIZE] == node.attributes[v.BATCH_SIZE]


def test_evaluation_says_so_everywhere(trained: tuple[Trained, Recorded]) -> None:
    """What knows a mode is ``eval`` below an evaluation and ``train`` everywhere else."""
    _, recorded = trained
    below = {id(node) for evaluation in recorded.nodes if evaluation.name == v.EVALUATE for node in evaluation.walk()}
    modes = {(id(node) in below, node.attributes[v.MODE]) for node in recorded.nodes if v.MODE in node.attributes}
    assert {(True, "eval"), (False, "train")} == modes


def test_asynchronous_reward_functions_overlap(trained: tuple[Trained, Recorded]) -> None:
    """Each has a span of its own, as long as it really took, inside the reward stage."""
    _, recorded = trained
    for reward in (node for node in recorded.nodes if node.name == v.REWARD):
        short, ends = reward.children[1].span, reward.children[2].span
        assert max(short.start_ns, ends.start_ns) < min(short.end_ns, ends.end_ns)
        assert min(short.end_ns - short.start_ns, ends.end_ns - ends.start_ns) >= 10_000_000
        assert ["digits", "short", "ends"] == [child.attributes[v.REWARD_FUNCTION] for child in reward.children]


def test_counters_are_the_sums_of_training_alone(trained: tuple[Trained, Recorded]) -> None:
    """Samples and tokens of rollouts, tokens of forwards, updates: what an evaluation does is in none of them."""
    result, recorded = trained
    rollouts = [rollout for rollout in result.truth["rollouts"] if rollout["mode"] == "train"]
    prompt = sum(len(text) for rollout in rollouts for text in rollout["prompts"])
    response = sum(len(ids) for rollout in rollouts for ids in rollout["completion_ids"])
    forwards = [node for step in recorded.steps().values() for node in step.children if node.name == v.FORWARD]
    assert {
        "samples": 16, "prompt": prompt, "response": response, "trained prompt": prompt, "trained response": response,
        "padding": sum(node.attributes[v.TOKENS_PADDING] for node in forwards), "updates": 4, "skipped": 0,
    } == {
        "samples": recorded.total(v.SAMPLES),
        "prompt": recorded.total(v.SAMPLE_TOKENS, rl_token_kind="prompt"),
        "response": recorded.total(v.SAMPLE_TOKENS, rl_token_kind="response"),
        "trained prompt": recorded.total(v.TRAIN_TOKENS, rl_token_kind="prompt"),
        "trained response": recorded.total(v.TRAIN_TOKENS, rl_token_kind="response"),
        "padding": recorded.total(v.TRAIN_TOKENS, rl_token_kind="padding"),
        "updates": recorded.total(v.TRAIN_STEPS),
        "skipped": recorded.total(v.TRAIN_STEPS_SKIPPED),
    }  # fmt: skip


def test_the_resource_says_what_is_trained(trained: tuple[Trained, Recorded], request: pytest.FixtureRequest) -> None:
    """Every record carries framework, algorithm and model; the folder of the model is not given away."""
    result, recorded = trained
    expected = {
        v.SYSTEM: "trl", v.ALGORITHM: "RLOO" if "rloo" in result.directory.name else "GRPO",
        v.MODEL_NAME: "tiny-qwen2", v.ROLE: "trainer", v.RANK: 0, v.WORLD_SIZE: 1, v.SERVICE_NAME: "trl-trainer",
    }  # fmt: skip
    steps = recorded.steps().values()
    assert all(expected == {key: step.span.resource[key] for key in expected} for step in steps)
    assert all(expected == {key: point.resource[key] for key in expected} for point in recorded.run.points())


def test_histograms_count_every_stage(trained: tuple[Trained, Recorded]) -> None:
    """Each stage's duration histogram has as many values, and the same sum, as there are spans."""
    _, recorded = trained
    spans: Counter[str] = Counter()
    for node in recorded.nodes:
        if node.name not in (v.LOOP, v.SETUP, v.TEARDOWN) and v.ITERATION not in node.attributes:
            spans[f"{node.name.partition(' ')[0]}.duration"] += 1
    spans.pop(f"{v.RANK_SPAN}.duration")
    counted: Counter[str] = Counter()
    for point in recorded.last(None):  # every metric
        if point.kind == "histogram" and point.name.endswith(".duration") and not point.name.startswith("gen_ai."):
            counted[point.name] += point.count
    assert {**spans, f"{v.LOOP}.duration": 4} == {
        k: n for k, n in counted.items() if not k.startswith((v.SETUP, v.TEARDOWN))
    }


# --- other ways of accumulating and reusing ---------------------------------------------------------------------------


def rollouts_of(recorded: Recorded) -> dict[int, list[str]]:
    """Name the rollouts that each step's forwards consumed, as letters in the order of their appearance."""
    letters: dict[Any, str] = {}
    return {
        number: [
            letters.setdefault(node.attributes[v.ROLLOUT_ID], chr(ord("a") + len(letters)))
            for node in step.children
            if node.name == v.FORWARD
        ]
        for number, step in recorded.steps().items()
    }


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("accumulation 2", {"gradient_accumulation_steps": 2}, {1: ["a", "a"], 2: ["b", "b"]}),
        (
            "two rollouts in an update",
            {"gradient_accumulation_steps": 4, "steps_per_generation": 2},
            {1: ["a", "a", "b", "b"], 2: ["c", "c", "d", "d"]},
        ),
        (
            "two iterations with an evaluation between",
            {"num_iterations": 2, "eval_strategy": "steps", "eval_steps": 1, "max_steps": 3},
            {1: ["a"], 2: ["a"], 3: ["b"]},
        ),
        (
            "eight updates of a rollout",
            {"steps_per_generation": 8, "max_steps": 9},
            {**{number: ["a"] for number in range(1, 9)}, 9: ["b"]},
        ),
    ],
)
def test_rollouts_and_updates_find_each_other(
    trainings: Trainings, name: str, config: dict[str, Any], expected: dict[int, list[str]]
) -> None:
    """Whatever their ratio, each micro-batch names its rollout, and each step links to the rollouts of others."""
    result = trainings.train(name.replace(" ", "-"), config={"max_steps": 2, **config})
    recorded = Recorded(result.runs)
    assert expected == rollouts_of(recorded)
    samples = {
        node.attributes[v.ROLLOUT_ID]: (number, node)
        for number, step in recorded.steps().items()
        for node in step.children
        if node.name == v.SAMPLE
    }
    for number, step in recorded.steps().items():
        used = dict.fromkeys(node.attributes[v.ROLLOUT_ID] for node in step.children if node.name == v.FORWARD)
        others = [samples[rollout][1].span.span_id for rollout in used if samples[rollout][0] != number]
        assert others == links(recorded, step), number
    assert ([], {}) == (recorded.orphans, recorded.errors())
    assert [] == [names for node in recorded.nodes for names in (*overlapping(node), *outside(node))]
    assert result.truth["steps"] == list(recorded.steps())
    logged = {entry["step"]: entry["loss"] for entry in result.truth["logs"] if "loss" in entry}
    assert logged == pytest.approx(one(recorded.values(v.LOSS)), abs=1e-6)


def one(values: dict[int, list[float]]) -> dict[int, float]:
    """Take the only value of each step."""
    assert all(len(found) == 1 for found in values.values()), values
    return {number: found[0] for number, found in values.items()}


# --- metrics ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def measured(request: pytest.FixtureRequest, trainings: Trainings) -> tuple[Trained, Trained, Recorded]:
    """The same training twice: without otel_rl, logging every step, and with it, logging every ten."""
    config = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 7}
    config |= {"eval_strategy": "steps", "eval_steps": 3}
    job = {"trainer": request.param, "rewards": ["unsure", "digits", "short"]}
    plain = trainings.train(f"plain-{request.param}", **job, config=config, otel=False)
    config = {**config, "logging_steps": 10, "report_to": ["otel"]}
    with_us = trainings.train(f"with-us-{request.param}", **job, config=config)
    return plain, with_us, Recorded(with_us.runs)


@pytest.mark.parametrize("trainer", ["grpo", "rloo"])
def test_what_a_derived_trainer_overrides_belongs_to_the_stage(trainings: Trainings, trainer: str) -> None:
    """Whether it calls the method of TRL or replaces it; and everything else is as without otel_rl."""
    config = {"max_steps": 2, "beta": 0.0}
    plain = trainings.train(f"plain-derived-{trainer}", trainer=trainer, config=config, derived=True, otel=False)
    result = trainings.train(f"derived-{trainer}", trainer=trainer, config=config, derived=True)
    for what in ("rollouts", "parameters", "random", "steps", "errors"):
        assert plain.truth[what] == result.truth[what]
    recorded = Recorded(result.runs)
    assert ([], {}) == (recorded.orphans, recorded.errors())
    scored = [line for line in lines(SCORED) if not line.startswith("  ")]  # it calls no function of TRL's for rewards
    old = ["rl.logprob old"] if trainer == "rloo" else []
    outline = lines("rl.idle", SAMPLED, *old, *scored, UPDATE, LOGGED)
    steps = recorded.steps()
    assert {1: outline, 2: [*outline, "rl.log"]} == {number: step.outline() for number, step in steps.items()}
    slept_s = 0.02
    for step in steps.values():
        found = {stage.name: stage for stage in step.children}
        assert 2 * slept_s <= (found[v.FORWARD].span.end_ns - found[v.FORWARD].span.start_ns) / 1e9
        assert slept_s <= (found[v.SAMPLE].span.end_ns - found[v.SAMPLE].span.start_ns) / 1e9
        assert TOKENS <= set(found[v.FORWARD].attributes)


def test_methods_that_another_library_replaces_are_the_same_stages(trainings: Trainings) -> None:
    """Before the trainer is made or after, of its class or its own; and everything else is as without otel_rl."""
    job = {"config": {"max_steps": 2}, "play": "train_replaced"}
    plain = trainings.train("plain-replaced", **job, otel=False)
    result = trainings.train("replaced", **job)
    as_it_is = trainings.train("not-replaced", config={"max_steps": 2})
    for what in ("rollouts", "parameters", "random", "steps", "errors"):
        assert plain.truth[what] == result.truth[what]
    recorded, expected = Recorded(result.runs), Recorded(as_it_is.runs)
    assert ([], {}) == (recorded.orphans, recorded.errors())
    outlines = [{number: step.outline() for number, step in one.steps().items()} for one in (expected, recorded)]
    assert outlines[0] == outlines[1]
    assert {1, 2} == set(outlines[0])
    for name in (v.SAMPLES, v.TRAIN_TOKENS):
        assert expected.total(name) == recorded.total(name) > 0


def test_a_loss_that_is_not_hooked_has_no_old_log_probabilities(trainings: Trainings) -> None:
    """Those that it computes are the forward, also of an evaluation; the rollout's own are as they are."""
    config = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    recorded = Recorded(trainings.train("loss", config=config, play="train_unhooked", unhooked="compute_loss").runs)
    (error,) = recorded.errors()
    assert "GRPOTrainer.compute_loss: " in error
    found = Counter(node.label for node in recorded.nodes if node.name in (v.SAMPLE, v.LOGPROB, v.FORWARD))
    assert {v.SAMPLE: 6, "rl.logprob ref": 6, v.FORWARD: 6} == dict(found)


def test_a_training_whose_steps_are_not_told_is_not_denied(trainings: Trainings) -> None:
    """The report says what is missing, and which method was replaced."""
    result = trainings.train("untold", config={"max_steps": 2}, play="train_unhooked", unhooked="get_batch_samples")
    report = build_report(Recorded(result.runs).run, time.time_ns())
    assert report.findings.time[0].sentence.startswith("trl trained, but no step was recorded: ")
    (error,) = [loss for loss in report.losses if loss.what == "error"]
    assert "Trainer.get_batch_samples: " in error.reason


CLOCKED = ("step_time", "epoch", "step", "runtime", "samples_per_second", "steps_per_second")


def test_recording_changes_nothing(measured: tuple[Trained, Trained, Recorded]) -> None:
    """Tokens, parameters and random states are those of the training without otel_rl, to the last bit."""
    plain, with_us, _ = measured
    for what in ("rollouts", "parameters", "random", "steps", "errors"):
        assert plain.truth[what] == with_us.truth[what]
    assert not (plain.directory / "runs").exists()


def test_metrics_of_every_step_are_trls_own(measured: tuple[Trained, Trained, Recorded]) -> None:
    """What TRL would log each step is there each step, under its canonical name; NaN stays NaN and is counted."""
    plain, _, recorded = measured
    logged: dict[str, dict[int, float]] = {}
    for entry in plain.truth["logs"]:
        if "loss" in entry:
            for name, value in entry.items():
                if name not in (*CLOCKED, "loss", "grad_norm", "learning_rate"):
                    logged.setdefault(name, {})[entry["step"]] = math.nan if value is None else value
    assert len(logged) > 15
    for name, expected in logged.items():
        metric, labels = spelled(name)
        found = one(recorded.values(metric, rl_scope="global", **labels))
        assert expected == pytest.approx(found, nan_ok=True), name
    assert any(map(math.isnan, logged["rewards/unsure/mean"].values()))
    counted = {point.attributes[v.METRIC_NAME]: point.value for point in recorded.last(v.NONFINITE)}
    nan = sum(math.isnan(point.value) for point in recorded.run.points(v.FUNCTION_SCORE))
    assert nan == counted[v.FUNCTION_SCORE] > 0


def spelled(name: str) -> tuple[str, dict[str, str]]:
    """Say under which metric and labels a value of TRL is found; an independent spelling of the table."""
    parts = name.split("/")
    if parts[0] == "rewards":
        return f"rl.reward.function.{parts[2].replace('mean', 'score')}", {"rl_reward_function": parts[1]}
    metric, labels = CANONICAL.get(name, (f"trl.{name}", ()))
    return metric, {key.replace(".", "_"): value for key, value in labels}


def test_the_reward_is_a_metric_of_its_own(measured: tuple[Trained, Trained, Recorded]) -> None:
    """No point of it is one of a function, of an evaluation, or a deviation: its mean by run needs no label."""
    plain, _, recorded = measured
    found = [(p.value, dict(p.attributes)) for p in recorded.run.points(v.REWARD_SCORE)]
    whole = {v.SCOPE_KEY: "global"}
    assert [(pytest.approx(e["reward"]), whole) for e in plain.truth["logs"] if "reward" in e] == found


def test_loss_norm_and_rate_of_every_step_are_the_trainers(measured: tuple[Trained, Trained, Recorded]) -> None:
    """Read without waiting for the trainer's own log."""
    plain, _, recorded = measured
    logs = {entry["step"]: entry for entry in plain.truth["logs"] if "loss" in entry}
    for metric, name in ((v.LOSS, "loss"), (v.GRAD_NORM, "grad_norm"), (v.LEARNING_RATE, "learning_rate")):
        expected = {number: entry[name] for number, entry in logs.items()}
        assert expected == pytest.approx(one(recorded.values(metric)), rel=1e-5, abs=1e-7), name
        assert max(map(abs, expected.values())) > 1e-4, name


def test_an_evaluations_metrics_are_told_apart(measured: tuple[Trained, Trained, Recorded]) -> None:
    """They carry ``rl.mode = eval`` and lie in the step after which TRL evaluated."""
    plain, _, recorded = measured
    for name in ("reward", "rewards/digits/mean", "completions/mean_length", "entropy"):
        expected = {e["step"]: e[f"eval_{name}"] for e in plain.truth["logs"] if f"eval_{name}" in e}
        metric, labels = (v.EVAL_REWARD, {}) if name == "reward" else spelled(name)
        assert [3, 6, 7] == list(expected)
        assert expected == pytest.approx(one(recorded.values(metric, **labels, rl_mode="eval"))), name


def evaluated_s(step: Node) -> tuple[float, float]:
    """Say how long a step evaluated, s: at least what evaluations took, at most what their neighbours leave them."""
    ends = [step.span.start_ns, *(child.span.end_ns for child in step.children)]
    starts = [*(child.span.start_ns for child in step.children[1:]), step.span.end_ns]
    places = [place for place, child in enumerate(step.children) if child.name == v.EVALUATE]
    spans = [step.children[place].span for place in places]
    least_ns = sum(span.end_ns - span.start_ns for span in spans)
    return least_ns / 1e9, sum(starts[place] - ends[place] for place in places) / 1e9


def test_step_time_is_the_length_of_the_step(measured: tuple[Trained, Trained, Recorded]) -> None:
    """And train time is what evaluation leaves of it."""
    _, _, recorded = measured
    lengths = {n: (s.span.end_ns - s.span.start_ns) / 1e9 for n, s in recorded.steps().items()}
    assert lengths == pytest.approx(one(recorded.values(v.STEP_TIME)), abs=1e-9)
    evaluated = {number: evaluated_s(step) for number, step in recorded.steps().items()}
    inner = one(recorded.values(v.TRAIN_TIME))
    assert [3, 6, 7] == [number for number, (least_s, _) in evaluated.items() if least_s]
    assert set(lengths) == set(inner)
    for number, (least_s, most_s) in evaluated.items():
        assert lengths[number] - most_s - 1e-9 <= inner[number] <= lengths[number] - least_s + 1e-9, number
    assert {"step_time", "perf/"} == set(PER_RANK)
    assert set(lengths) == set(recorded.values("trl.step_time", rl_scope="rank"))


# --- the parts of a rollout, answers without a number, settings -------------------------------------------------------


def lasted_s(node: Node) -> float:
    """Say how long a stage lasted."""
    return float(node.span.end_ns - node.span.start_ns) / 1e9


def test_a_slow_tokenizer_is_not_the_engine(trainings: Trainings) -> None:
    """What it takes lies in the stages of texts, in training and evaluation, and is no time of generating."""
    config = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    recorded = Recorded(trainings.train("slow", play="slow_texts", trainer="rloo", config=config).runs)
    sampled = [node for node in recorded.nodes if node.name == v.SAMPLE]
    assert {"train", "eval"} == {node.attributes[v.MODE] for node in sampled}
    for node in sampled:
        tokenize, generate, decode = node.children
        assert PARTS == [tokenize.name, generate.name, decode.name]
        assert min(lasted_s(tokenize), lasted_s(decode)) >= 0.02
        assert lasted_s(generate) <= lasted_s(node) - 0.04
    assert {} == recorded.errors()


def test_decoding_that_fails_ends_with_its_rollout(trainings: Trainings) -> None:
    """Though no call of ours ends it; what follows the exception is inside nothing that has ended."""
    result = trainings.train("undecoded", play="slow_texts", fails=True, code=None)
    assert ["LookupError('no such token')"] == result.truth["errors"]
    recorded = Recorded(result.runs)
    failed = {node.name: node for node in recorded.nodes if node.span.status_code == 2}
    assert {v.LOOP, f"{v.RANK_SPAN} 0", v.SAMPLE, v.SAMPLE_DECODE} == set(failed)
    assert failed[v.SAMPLE].children[-1] is failed[v.SAMPLE_DECODE]
    assert [] == [names for node in recorded.nodes for names in (*overlapping(node), *outside(node))]
    assert ([], [], {}) == (recorded.orphans, recorded.run.open_stages(), recorded.errors())


def test_answers_without_a_number_are_counted(trainings: Trainings) -> None:
    """NaN and infinity of each function and of all rollouts of a step; None, which TRL makes NaN of, is none."""
    config = {
        "max_steps": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 2,
        "eval_strategy": "steps", "eval_steps": 2, "beta": 0.0,
    }  # fmt: skip
    rewards = ["unsure", "broken", "broken_async", "digits"]
    result = trainings.train("broken", config=config, rewards=rewards)
    recorded = Recorded(result.runs)
    expected = {"unsure": 0, "broken": 2, "broken_async": 2, "digits": 0}
    evaluated = [rollout["mode"] for rollout in result.truth["rollouts"]].count("eval")
    for function, each in expected.items():
        found = recorded.values(v.REWARD_NONFINITE, rl_reward_function=function, rl_scope="rank")
        assert {1: 2 * each, 2: 2 * each} == one({n: of for n, of in found.items()}), function
        found = recorded.values(v.REWARD_NONFINITE, rl_reward_function=function, rl_mode="eval")
        assert {2: evaluated * each} == one(found), function
    assert evaluated > 1
    assert {} == recorded.errors()


def test_the_settings_are_said_once(trained: tuple[Trained, Recorded]) -> None:
    """On the container of set-up, where the report finds them."""
    _, recorded = trained
    said = [node.name for node in recorded.nodes if any(key.startswith(v.SETTINGS) for key in node.attributes)]
    assert [f"{v.RANK_SPAN} 0"] == said
    assert {
        "learning_rate": 1e-3, "samples_per_rank": 8.0, "group_size": 4.0, "response_limit": 8.0,
        "updates_per_rollout": 2.0, "steps": 4.0, "temperature": 1.0, "kl_coefficient": 0.04, "gradient_limit": 1.0,
    } == build_report(recorded.run, time.time_ns()).settings  # fmt: skip


# --- an evaluation that leaves the model training ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def batched(request: pytest.FixtureRequest, trainings: Trainings) -> tuple[Trained, Recorded]:
    """Continuous batching, behind which TRL's model trains, and after every step an evaluation of several batches."""
    result = trainings.train(
        f"batched-{request.param}",
        trainer=request.param,
        config={
            "max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "use_transformers_continuous_batching": True,
            "transformers_continuous_batching_config": {"page_size": 16, "num_blocks": 64, "max_batch_tokens": 64},
        },
        rewards=["short"],
    )  # fmt: skip
    return result, Recorded(result.runs)


def parted(result: Trained) -> tuple[list[Any], dict[int, list[Any]]]:
    """Part the rollouts of training from those of the evaluation after each step: a step's own comes last."""
    by_step: dict[int, list[Any]] = {}
    for rollout in result.truth["rollouts"]:
        by_step.setdefault(rollout["step"], []).append(rollout)
    training = [by_step[number].pop() for number in (1, 2, 3)]
    return training, {number - 1: rollouts for number, rollouts in by_step.items() if rollouts}


def test_a_model_that_trains_in_an_evaluation_is_evaluated(batched: tuple[Trained, Recorded]) -> None:
    """Whatever the model says, what lies below an evaluation is none of training."""
    result, recorded = batched
    below = {id(node) for evaluation in recorded.nodes if evaluation.name == v.EVALUATE for node in evaluation.walk()}
    told = [(id(node) in below, node.attributes[v.MODE]) for node in recorded.nodes if v.MODE in node.attributes]
    assert {(True, "eval"), (False, "train")} == set(told)
    sampled = Counter(node.attributes[v.MODE] for node in recorded.nodes if node.name == v.SAMPLE)
    assert all(PARTS == [child.name for child in node.children] for node in recorded.nodes if node.name == v.SAMPLE)
    training, evaluated = parted(result)
    assert {"train": len(training), "eval": sum(map(len, evaluated.values()))} == sampled
    assert {1, 2, 3} == set(evaluated)
    assert min(map(len, evaluated.values())) > 1


def test_counters_do_not_take_an_evaluation_for_training(batched: tuple[Trained, Recorded]) -> None:
    """Samples, their tokens, those of the forwards, and each step's loss are of training alone."""
    result, recorded = batched
    training, _ = parted(result)
    prompt = sum(len(text) for rollout in training for text in rollout["prompts"])
    response = sum(len(ids) for rollout in training for ids in rollout["completion_ids"])
    assert (12, prompt, response, prompt, response) == (
        recorded.total(v.SAMPLES),
        recorded.total(v.SAMPLE_TOKENS, rl_token_kind="prompt"),
        recorded.total(v.SAMPLE_TOKENS, rl_token_kind="response"),
        recorded.total(v.TRAIN_TOKENS, rl_token_kind="prompt"),
        recorded.total(v.TRAIN_TOKENS, rl_token_kind="response"),
    )
    logged = {entry["step"]: entry["loss"] for entry in result.truth["logs"] if "loss" in entry}
    assert logged == pytest.approx(one(recorded.values(v.LOSS)), abs=1e-6)


def test_an_evaluation_that_left_the_model_training_has_its_reward(batched: tuple[Trained, Recorded]) -> None:
    """TRL keeps that of the first batch as the evaluation's; a step's own reward is that of its rollout."""
    result, recorded = batched
    training, evaluated = parted(result)

    def reward(rollout: Any) -> float:
        return sum(1 / (1 + len(ids)) for ids in rollout["completion_ids"]) / len(rollout["completion_ids"])

    first = {number: reward(rollouts[0]) for number, rollouts in evaluated.items()}
    assert first == pytest.approx(one(recorded.values(v.EVAL_REWARD, rl_mode="eval")))
    own = {number: reward(rollout) for number, rollout in enumerate(training, 1)}
    assert own == pytest.approx(one(recorded.values(v.REWARD_SCORE)))


def test_rewards_and_advantages_are_those_of_the_samples(
    batched: tuple[Trained, Recorded], request: pytest.FixtureRequest
) -> None:
    """Extremes by step and mode, the distribution of all, and what TRL makes of the rewards of a group."""
    result, recorded = batched
    training, evaluated = parted(result)

    def rewards(rollouts: list[Any]) -> list[float]:
        return [1 / (1 + len(ids)) for rollout in rollouts for ids in rollout["completion_ids"]]

    own = {number: rewards([rollout]) for number, rollout in enumerate(training, 1)}
    of_evaluations = {number: rewards(rollouts) for number, rollouts in evaluated.items()}
    for metric, extreme in ((v.REWARD_MAX, max), (v.REWARD_MIN, min)):
        assert {n: extreme(of) for n, of in own.items()} == pytest.approx(one(recorded.values(metric)))
        found = one(recorded.values(metric, rl_mode="eval"))
        assert {n: extreme(of) for n, of in of_evaluations.items()} == pytest.approx(found)
    counted = {point.attributes.get(v.MODE): point for point in recorded.last(v.REWARD_DISTRIBUTION)}
    for mode, each in ((None, own), ("eval", of_evaluations)):
        values = [value for found in each.values() for value in found]
        assert (len(values), pytest.approx(sum(values))) == (counted[mode].count, counted[mode].sum)
        assert sum(0.1 < value <= 0.2 for value in values) == counted[mode].counts[10]
    is_grpo = "grpo" in request.node.callspec.id
    for number, of_step in own.items():
        advantages = (of_group if is_grpo else of_others)(of_step)
        lengths = [len(ids) for ids in training[number - 1]["completion_ids"]]
        mean = sum(map(operator.mul, advantages, lengths)) / sum(lengths)
        near = 1e-4 if is_grpo or number == 1 else 0.02  # RLOO takes the KL to the reference off the rewards
        for metric, expected in (
            (v.ADVANTAGE_MEAN, mean), (v.ADVANTAGE_MAX, max(advantages)), (v.ADVANTAGE_MIN, min(advantages)),
        ):  # fmt: skip
            assert one(recorded.values(metric))[number] == pytest.approx(expected, abs=near), metric


def of_group(rewards: list[float]) -> list[float]:
    """Return the advantages that GRPO makes of a group."""
    return [(one - statistics.mean(rewards)) / (statistics.stdev(rewards) + 1e-4) for one in rewards]


def of_others(rewards: list[float]) -> list[float]:
    """Return the advantages that RLOO makes of a group: against the mean of the others."""
    return [one - (sum(rewards) - one) / (len(rewards) - 1) for one in rewards]


def test_the_reward_knows_its_tokens(batched: tuple[Trained, Recorded]) -> None:
    """Those of its rollout."""
    _, recorded = batched
    for root in recorded.steps().values():
        (sample,), (reward,) = (
            [child for child in root.children if child.name == name] for name in (v.SAMPLE, v.REWARD)
        )
        assert sample.attributes[v.TOKENS] == reward.attributes[v.TOKENS] > 0


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "error", "code"),
    [("failing", "LookupError", 1), ("failing_async", "LookupError", 1), ("interrupted", "KeyboardInterrupt", -2)],
)
def test_an_exception_in_a_reward_function_closes_what_was_open(
    trainings: Trainings, reward: str, error: str, code: int
) -> None:
    """The host gets its own exception, every open span its status, and the run is whole."""
    result = trainings.train(f"fails-{reward}", rewards=[reward], code=None)
    recorded = Recorded(result.runs)
    said = "LookupError('the judge is away')" if error == "LookupError" else "KeyboardInterrupt()"
    assert [said] == result.truth["errors"]
    if error == "LookupError":
        assert "LookupError: the judge is away" in result.output
    failed = [node for node in recorded.nodes if node.span.status_code == 2]
    assert {v.LOOP, f"{v.RANK_SPAN} 0", v.REWARD, f"{v.REWARD} {reward}"} == {node.name for node in failed}
    assert {error} == {node.attributes[v.ERROR_TYPE] for node in failed}
    assert [1, 2, 3] == list(recorded.steps())
    assert ([], [], {}) == (recorded.orphans, recorded.run.open_stages(), recorded.errors())
    assert [1, 2] == sorted(recorded.values(v.STEP_TIME))


@pytest.mark.parametrize("where", [v.SAMPLE_GENERATE, v.LOGPROB, v.FORWARD, v.BACKWARD])
def test_running_out_of_memory_names_every_open_stage(trainings: Trainings, where: str) -> None:
    """A record for each, with memory and what it worked on; the next training is not spoiled by what was left over."""
    config = {"gradient_accumulation_steps": 2, "max_steps": 3}
    result = trainings.train(f"exhausted-{where}", play="exhausted", config=config, where=where)
    recorded = Recorded(result.runs)
    assert ["OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB')"] == result.truth["errors"]
    records = list(recorded.run.logs(v.OUT_OF_MEMORY))
    around = [v.SAMPLE] if where == v.SAMPLE_GENERATE else []
    assert Counter([v.LOOP, f"{v.RANK_SPAN} 0", *around, where]) == Counter(record.body for record in records)
    assert all(MEMORY <= set(record.attributes) for record in records)
    assert all(record.severity == 17 for record in records)
    assert {2} == {r.attributes[v.ITERATION] for r in records if v.ITERATION in r.attributes}
    logged = {entry["step"]: entry["loss"] for entry in result.truth["logs"] if "loss" in entry}
    assert logged == pytest.approx(one(recorded.values(v.LOSS, loop="train.2")), abs=1e-6)
    assert [1] == list(recorded.values(v.LOSS))
    (exhausted,) = (record.attributes for record in records if record.body == (*around, where)[0])
    expected = work(where, result, recorded)
    assert expected == {key: exhausted.get(key) for key in expected}
    trained = [node.attributes[v.TOKENS_PROMPT] for node in forwards(recorded) if v.ERROR_TYPE not in node.attributes]
    assert sum(trained) == recorded.total(v.TRAIN_TOKENS, rl_token_kind="prompt")


def forwards(recorded: Recorded) -> list[Node]:
    """Find the forwards in the order in which they were made."""
    return sorted((node for node in recorded.nodes if node.name == v.FORWARD), key=lambda node: node.span.start_ns)


def work(where: str, result: Trained, recorded: Recorded) -> dict[str, Any]:
    """Say what the stage worked on in which memory ran out: one of two micro-batches of the second rollout, or all."""
    if where == v.SAMPLE_GENERATE:
        return {
            v.MODE: "train", v.POLICY_VERSION: 1, v.SAMPLE_BATCH_SIZE: 8, v.GROUP_SIZE: 4,
            v.TOKENS_PROMPT: result.truth["tokens"], v.TOKENS: None,
        }  # fmt: skip
    if where == v.LOGPROB:  # rewards, and with them the truth, come later
        samples = sorted(
            (node for node in recorded.nodes if node.name == v.SAMPLE), key=lambda node: node.span.start_ns
        )
        return {v.LOGPROB_KIND: "ref", v.BATCH_SIZE: 8, v.TOKENS: samples[1].attributes[v.TOKENS]}
    rollout = result.truth["rollouts"][1]
    prompt, response = (sum(map(len, rollout[key])) for key in ("prompts", "completion_ids"))
    first, second = forwards(recorded)[2:4]
    prompt -= first.attributes[v.TOKENS_PROMPT]
    response -= first.attributes[v.TOKENS_RESPONSE]
    return {
        v.TRAIN_BATCH_SIZE: 4,
        v.TOKENS: prompt + response,
        v.TOKENS_PROMPT: prompt,
        v.TOKENS_RESPONSE: response,
        v.TOKENS_PADDING: second.attributes[v.TOKENS_PADDING],
    }
