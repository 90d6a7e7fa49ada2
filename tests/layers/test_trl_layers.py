"""The four log layers of real TRL on two ranks: complete, joined with their spans, and what TRL itself printed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

pytest.importorskip("trl")

from otel_rl import vocabulary as v
from otel_rl.journal.views import LogView
from tests.layers.records import LAYERS, layered, span_of
from tests.programs.launch import Trained, train
from tests.programs.recorded import Recorded

pytestmark = pytest.mark.slow

STEPS = 6
PRINTED = {
    v.LOOP_LINE: {"epoch": v.EPOCH, "learning_rate": v.LEARNING_RATE},
    v.ROLLOUT_LINE: {
        "reward": v.REWARD_SCORE, "reward_std": v.REWARD_STD, "frac_reward_zero_std": v.REWARD_ZERO_STD,
        "kl": v.KL_REFERENCE, "rewards/digits/mean": f"{v.FUNCTION_SCORE}.digits",
        "rewards/short/std": f"{v.FUNCTION_STD}.short", "completions/mean_length": v.RESPONSE_LENGTH,
        "completions/min_length": v.RESPONSE_MIN, "completions/max_length": v.RESPONSE_MAX,
        "completions/clipped_ratio": v.RESPONSE_CLIPPED,
    },
    v.UPDATE_LINE: {
        "loss": v.LOSS, "grad_norm": v.GRAD_NORM, "kl": v.KL_REFERENCE, "entropy": v.ENTROPY,
        "clip_ratio/low_mean": f"{v.CLIP_SIDE_FRACTION}.low", "clip_ratio/high_mean": f"{v.CLIP_SIDE_FRACTION}.high",
        "clip_ratio/region_mean": v.CLIP_FRACTION,
    },
}  # fmt: skip
"""Names of TRL in what it printed, and ours in each line."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Recorded]:
    """Six steps on two ranks, two for each rollout, and an evaluation."""
    config = {"max_steps": STEPS, "steps_per_generation": 2, "eval_strategy": "steps", "eval_steps": 3}
    result = train(tmp_path_factory.mktemp("layers"), ranks=2, config=config, rewards=["digits", "short"])
    return result, Recorded(result.runs)


def by_step(recorded: Recorded, event: str) -> dict[int, list[LogView]]:
    """Return the records of a layer by step."""
    found: dict[int, list[LogView]] = defaultdict(list)
    for log in layered(recorded.run, event):
        found[int(str(log.attributes[v.ITERATION]))].append(log)
    return dict(found)


def test_the_layers_are_complete(trained: tuple[Trained, Recorded]) -> None:
    """A line of loop and update for each step, one of the rollout where there was one, and every sample."""
    _, recorded = trained
    steps, rollouts = set(range(1, STEPS + 1)), {1, 3, 5}
    found = {event: by_step(recorded, event) for event in LAYERS}
    assert [steps, rollouts, steps, rollouts] == [set(found[event]) for event in LAYERS]
    assert {1} == {len(logs) for event in LAYERS[:3] for logs in found[event].values()}
    assert {16} == {len(logs) for logs in found[v.SAMPLE_RECORD].values()}
    assert {} == recorded.errors()


def test_lines_say_what_trl_printed(trained: tuple[Trained, Recorded]) -> None:
    """Every number of every step, also the loss of both ranks together."""
    result, recorded = trained
    printed = {entry["step"]: entry for entry in result.truth["logs"] if "loss" in entry}
    assert set(range(1, STEPS + 1)) == set(printed)
    for event, names in PRINTED.items():
        for step, (line,) in by_step(recorded, event).items():
            expected = {ours: printed[step][theirs] for theirs, ours in names.items()}
            found = {ours: line.attributes.get(ours) for ours in names.values()}
            assert found == pytest.approx(expected, rel=1e-5), (event, step)
    evaluated = {entry["step"]: entry["eval_reward"] for entry in result.truth["logs"] if "eval_reward" in entry}
    lines = by_step(recorded, v.LOOP_LINE)
    found = {
        step: line.attributes[v.EVAL_REWARD] for step, (line,) in lines.items() if v.EVAL_REWARD in line.attributes
    }
    assert found == pytest.approx(evaluated)


def test_records_are_joined_with_their_spans(trained: tuple[Trained, Recorded]) -> None:
    """Each in the trace of its step, with the span that it speaks of, of the rank that wrote it."""
    _, recorded = trained
    spans = [node.span for node in recorded.nodes]
    names = {v.LOOP_LINE: v.LOOP, v.ROLLOUT_LINE: v.SAMPLE, v.UPDATE_LINE: v.OPTIMIZER, v.SAMPLE_RECORD: v.SAMPLE}
    for event, name in names.items():
        for log in layered(recorded.run, event):
            span = span_of(log, spans)
            assert (name, log.resource[v.RANK]) == (span.name, span.resource[v.RANK])
            container = recorded.steps(int(str(log.resource[v.RANK])))[int(str(log.attributes[v.ITERATION]))].span
            assert container.trace_id == span.trace_id
            assert event == v.SAMPLE_RECORD or 0 == log.resource[v.RANK]
            assert log.time_ns == (span.end_ns if event == v.SAMPLE_RECORD else container.end_ns)
            if event == v.LOOP_LINE:
                assert log.attributes[v.STEP_SECONDS] == pytest.approx((container.end_ns - container.start_ns) / 1e9)


def test_samples_are_those_of_each_rank(trained: tuple[Trained, Recorded]) -> None:
    """Tokens as the reward functions saw them, and rewards whose mean and spread TRL printed."""
    result, recorded = trained
    printed = {entry["step"]: entry for entry in result.truth["logs"] if "reward" in entry}
    for step, samples in by_step(recorded, v.SAMPLE_RECORD).items():
        for rank in (0, 1):
            (rollout,) = (r for r in result.truths[rank]["rollouts"] if (r["step"], r["mode"]) == (step, "train"))
            own = [log.attributes for log in samples if log.resource[v.RANK] == rank]
            assert [len(ids) for ids in rollout["completion_ids"]] == [one[v.TOKENS_RESPONSE] for one in own]
            assert [len(prompt) for prompt in rollout["prompts"]] == [one[v.TOKENS_PROMPT] for one in own]
            ends = ["stop" if ids[-1] in (0, 1) else "length" for ids in rollout["completion_ids"]]
            assert ends == [one[v.SAMPLE_FINISH] for one in own]
        _check_rewards([log.attributes for log in samples], printed[step], step)


def _check_rewards(samples: list[Any], printed: dict[str, float], step: int) -> None:
    """Compare rewards with what TRL printed, and advantages with the definition of GRPO."""
    rewards = [one[v.SAMPLE_REWARD] for one in samples]
    assert (printed["reward"], printed["reward_std"]) == pytest.approx((fmean(rewards), stdev(rewards)), rel=1e-4)
    for name in ("digits", "short"):
        of_function = [one[f"{v.SAMPLE_REWARD}.{name}"] for one in samples]
        assert printed[f"rewards/{name}/mean"] == pytest.approx(fmean(of_function), rel=1e-4)
    groups: dict[str, list[Any]] = defaultdict(list)
    for one in samples:
        groups[one[v.GROUP_ID]].append(one)
    assert [4] * 4 == [len(group) for group in groups.values()]
    assert 16 == len({one[v.SAMPLE_ID] for one in samples})
    for group in groups.values():
        known = [one[v.SAMPLE_REWARD] for one in group]
        expected = [(reward - fmean(known)) / (stdev(known) + 1e-4) for reward in known]
        assert expected == pytest.approx([one[v.SAMPLE_ADVANTAGE] for one in group], rel=1e-3, abs=1e-4)
    assert {(step - 1, 1, True)} == {(o[v.POLICY_VERSION], o[v.SAMPLE_TURNS], o[v.SAMPLE_USED]) for o in samples}


def test_texts_of_trl(tmp_path: Path) -> None:
    """Only if they may be recorded: prompt and response as the reward functions get them; RLOO has samples, too."""
    env = {"OTEL_RL_CAPTURE_CONTENT": "true"}
    result = train(tmp_path, trainer="rloo", config={"max_steps": 1}, rewards=["digits"], env=env)
    (rollout,) = result.truth["rollouts"]
    samples = [log.attributes for log in layered(Recorded(result.runs).run, v.SAMPLE_RECORD)]
    assert rollout["prompts"] == [one[v.SAMPLE_PROMPT] for one in samples]
    texts = [one[v.SAMPLE_RESPONSE] for one in samples]
    digits = [sum(c.isdigit() for c in text) / max(len(text), 1) for text in texts]
    assert digits == pytest.approx([one[f"{v.SAMPLE_REWARD}.digits"] for one in samples])
