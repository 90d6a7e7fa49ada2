"""The four log layers of a real verl: complete, joined with their spans, and what verl itself logged."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest

from otel_rl import vocabulary as v
from tests.layers.records import LAYERS, layered, span_of
from tests.verl.training import Trained

pytestmark = pytest.mark.verl

LOGGED = {
    v.LOOP_LINE: {"actor/lr": v.LEARNING_RATE, "training/epoch": v.EPOCH},
    v.ROLLOUT_LINE: {
        "critic/score/mean": v.REWARD_SCORE, "actor/kl_loss": v.KL_REFERENCE, "response_length/mean": v.RESPONSE_LENGTH,
        "response_length/min": v.RESPONSE_MIN, "response_length/max": v.RESPONSE_MAX,
        "response_length/clip_ratio": v.RESPONSE_CLIPPED,
    },
    v.UPDATE_LINE: {
        "actor/loss": v.LOSS, "actor/pg_loss": f"{v.LOSS_TERM}.policy", "actor/grad_norm": v.GRAD_NORM,
        "actor/entropy": v.ENTROPY, "actor/ppo_kl": v.KL_POLICY, "actor/pg_clipfrac": v.CLIP_FRACTION,
    },
}  # fmt: skip
"""Names of verl in what it logged, and ours in each line."""


def test_lines_say_what_verl_logged(watched: Trained) -> None:
    """One of each layer and step, from the driver alone."""
    (run,) = watched.recorded()
    steps = [row for row in watched.metrics() if "actor/loss" in row]
    assert 2 == len(steps)
    for event, names in LOGGED.items():
        lines = layered(run, event)
        assert [1, 2] == [line.attributes[v.ITERATION] for line in lines]
        assert {"driver"} == {line.resource["rl.role"] for line in lines}
        for line, logged in zip(lines, steps, strict=True):
            expected = {ours: logged[theirs] for theirs, ours in names.items() if theirs in logged}
            assert len(expected) > len(names) // 2
            assert {ours: line.attributes.get(ours) for ours in expected} == pytest.approx(expected), event


def test_samples_are_those_that_verl_trained_on(watched: Trained) -> None:
    """Rewards, lengths and advantages have the means and extremes that verl logged; the spread it does not log."""
    (run,) = watched.recorded()
    steps = [row for row in watched.metrics() if "actor/loss" in row]
    (rollouts, samples) = (layered(run, event) for event in (v.ROLLOUT_LINE, v.SAMPLE_RECORD))
    for number, logged in enumerate(steps, 1):
        own = [log.attributes for log in samples if log.attributes[v.ITERATION] == number]
        assert 8 == len(own) == len({one[v.SAMPLE_ID] for one in own})
        assert [2] * 4 == [sum(one[v.GROUP_ID] == group for one in own) for group in {one[v.GROUP_ID] for one in own}]
        kinds = {
            "critic/score": [one[v.SAMPLE_REWARD] for one in own],
            "response_length": [one[v.TOKENS_RESPONSE] + one[v.TOKENS_ENVIRONMENT] for one in own],
            "prompt_length": [one[v.TOKENS_PROMPT] for one in own],
        }
        for name, values in kinds.items():
            expected = [logged[f"{name}/{end}"] for end in ("mean", "max", "min")]
            assert expected == pytest.approx([fmean(values), max(values), min(values)]), name  # type: ignore[arg-type]
        advantages = [one[v.SAMPLE_ADVANTAGE] for one in own]
        ends = [logged[f"critic/advantages/{end}"] for end in ("max", "min")]
        assert ends == pytest.approx([max(advantages), min(advantages)])  # type: ignore[type-var]
        assert {(number - 1, True, 1)} == {(o[v.POLICY_VERSION], o[v.SAMPLE_USED], o[v.SAMPLE_TURNS]) for o in own}
        spread = rollouts[number - 1].attributes[v.REWARD_STD]
        assert spread == pytest.approx(stdev(kinds["critic/score"]))  # type: ignore[type-var]


def test_records_are_joined_with_their_spans(watched: Trained) -> None:
    """By trace and span of the driver; a sample also by the id that its trajectory has."""
    (run,) = watched.recorded()
    spans = list(run.spans((v.SAMPLE_ID, v.MODE)))
    names = dict(zip(LAYERS, (v.LOOP, v.SAMPLE_SUBMIT, v.TRAIN, f"{v.RANK_SPAN} 0"), strict=True))
    for event, name in names.items():
        assert {name} == {span_of(log, spans).name for log in layered(run, event)}
    trajectories = {
        (span.trace_id, span.attributes[v.SAMPLE_ID])
        for span in spans
        if span.name == v.TRAJECTORY and span.attributes[v.MODE] == "train"
    }
    assert trajectories == {(log.trace_id, log.attributes[v.SAMPLE_ID]) for log in layered(run, v.SAMPLE_RECORD)}
