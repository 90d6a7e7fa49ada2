"""What verl logs: canonical where the meaning is the same, else under verl's name, once a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from otel_rl import vocabulary as v
from otel_rl.integrations.verl.tracking import log_metrics, meaning, read_settings
from otel_rl.process.state import state
from tests.fixtures import WALL_NS, Recording

STEP = """
global_seqlen/min global_seqlen/max global_seqlen/minmax_diff global_seqlen/balanced_min global_seqlen/balanced_max
global_seqlen/mean actor/entropy training/rollout_probs_diff_valid training/rollout_probs_diff_max
training/rollout_probs_diff_mean training/rollout_probs_diff_std training/rollout_actor_probs_pearson_corr
rollout_corr/training_ppl rollout_corr/training_log_ppl rollout_corr/kl rollout_corr/k3_kl rollout_corr/rollout_ppl
rollout_corr/rollout_log_ppl rollout_corr/log_ppl_diff rollout_corr/log_ppl_abs_diff rollout_corr/log_ppl_diff_max
rollout_corr/log_ppl_diff_min rollout_corr/ppl_ratio rollout_corr/chi2_token rollout_corr/chi2_seq actor/pg_clipfrac
actor/ppo_kl actor/pg_clipfrac_lower actor/pg_loss actor/kl_loss actor/kl_coef actor/loss actor/grad_norm
actor/perf/max_memory_allocated_gb actor/perf/max_memory_reserved_gb actor/perf/cpu_memory_used_gb actor/lr
perf/mfu/actor val-aux/toy/add/reward/mean@1 val-aux/toy/add/score/mean@1 val-core/toy/add/acc/mean@1
val-aux/toy/add/acc_success_only/mean@1 val-aux/num_turns/min val-aux/num_turns/max val-aux/num_turns/mean
training/global_step training/epoch critic/score/mean critic/score/max critic/score/min critic/rewards/mean
critic/rewards/max critic/rewards/min critic/advantages/mean critic/advantages/max critic/advantages/min
critic/returns/mean critic/returns/max critic/returns/min response_length/mean response_length/max
response_length/min response_length/clip_ratio response_length_non_aborted/mean response_length_non_aborted/max
response_length_non_aborted/min response_length_non_aborted/clip_ratio response/aborted_ratio prompt_length/mean
prompt_length/max prompt_length/min prompt_length/clip_ratio num_turns/min num_turns/max num_turns/mean timing_s/gen
timing_s/old_log_prob timing_s/ref timing_s/adv timing_s/update_actor timing_s/save_checkpoint
timing_s/update_weights timing_s/step timing_s/testing timing_per_token_ms/ref timing_per_token_ms/gen
timing_per_token_ms/adv timing_per_token_ms/update_actor perf/total_num_tokens perf/time_per_step perf/throughput
training/num_turns/mean training/num_turns/max training/num_turns/min training/off_policy/trajectory_spans/mean
training/off_policy/trajectory_spans/max training/off_policy/trajectory_spans/min
training/off_policy/trajectory_staleness/mean training/off_policy/trajectory_staleness/max
training/off_policy/trajectory_staleness/min training/off_policy/trajectory_staleness_worst/mean
training/off_policy/trajectory_staleness_worst/max training/off_policy/trajectory_staleness_worst/min
"""
"""What verl 0.9.1 logs for a step of GRPO with an evaluation."""
KEYS = STEP.split()
OURS = {
    "critic/score/mean": v.REWARD_SCORE, "critic/score/max": v.REWARD_MAX, "critic/score/min": v.REWARD_MIN,
    "critic/advantages/mean": v.ADVANTAGE_MEAN, "critic/advantages/max": v.ADVANTAGE_MAX,
    "critic/advantages/min": v.ADVANTAGE_MIN, "actor/loss": v.LOSS, "actor/pg_loss": f"{v.LOSS_TERM} policy",
    "actor/entropy": v.ENTROPY, "actor/kl_loss": v.KL_REFERENCE, "actor/ppo_kl": v.KL_POLICY,
    "actor/pg_clipfrac": v.CLIP_FRACTION, "actor/grad_norm": v.GRAD_NORM, "actor/lr": v.LEARNING_RATE,
    "training/epoch": v.EPOCH,
    "response_length/mean": v.RESPONSE_LENGTH, "response_length/min": v.RESPONSE_MIN,
    "response_length/max": v.RESPONSE_MAX, "val-aux/toy/add/reward/mean@1": f"{v.EVAL_REWARD} eval",
}  # fmt: skip


def settings(limit: int = 16, **changed: str) -> dict[str, Any]:
    """Make the settings that verl gives its trackers, of those that matter."""
    chosen = {"loss_agg_mode": "token-mean", "kl_loss_type": "low_var_kl", "loss_mode": "vanilla", "kl_penalty": "kl"}
    chosen |= changed
    actor = {name: chosen[name] for name in ("loss_agg_mode", "kl_loss_type")}
    actor["policy_loss"] = {"loss_mode": chosen["loss_mode"]}
    worker = {"actor": actor, "rollout": {"response_length": limit}}
    return {"actor_rollout_ref": worker, "algorithm": {"kl_penalty": chosen["kl_penalty"]}}


def logged(recording: Recording, *calls: dict[str, Any]) -> dict[str, list[float]]:
    """Log as verl does; return the values of each metric, with what else its points say."""
    for step, data in enumerate(calls):
        log_metrics((object(),), {"data": data, "step": step})
    found: dict[str, list[float]] = {}
    for point in recording.stop().points(lambda name: name.startswith((v.VERL, "rl."))):
        said = dict(point.attributes)
        if said.pop(v.SCOPE_KEY, None) == "global":
            name = point.name.removeprefix(v.VERL)
            assert name == said.pop(v.METRIC_NAME, name)
            found.setdefault(" ".join((point.name, *map(str, said.values()))), []).append(point.value)
    return found


def names(recording: Recording, data: dict[str, Any], **changed: str) -> set[str]:
    """Return under which names of ours the keys go out, under changed settings."""
    read_settings((object(), "project", "experiment", "console", settings(**changed)), {})
    return {name for name in logged(recording, data) if not name.startswith(v.VERL)}


def test_a_step_of_verl(recording: Recording) -> None:
    """Every key of a real step goes out once; what was cut at the limit is beside what verl says of it."""
    values = {key: float(place) for place, key in enumerate(KEYS)} | {"response_length/max": 16.0}
    evaluated = {key: " eval" if key.startswith("val-") else "" for key in KEYS}
    expected = {OURS.get(key, f"{v.VERL}{key}{evaluated[key]}"): [value] for key, value in values.items()}
    expected[v.RESPONSE_CLIPPED] = [values["response_length/clip_ratio"]]
    read_settings((), {"config": settings()})
    assert expected == logged(recording, values)


def test_points_are_stamped_when_verl_logs(recording: Recording) -> None:
    """A key of two calls has two points: nothing waits for the end of the step."""
    for value in (1, 2):
        recording.tick(10)
        log_metrics((object(), {"critic/score/mean": value}, 0), {})
    points = recording.stop().points(v.REWARD_SCORE)
    assert [(1, WALL_NS + 1_010_000_000), (2, WALL_NS + 1_020_000_000)] == [(p.value, p.time_ns) for p in points]


def test_numbers_of_every_kind(recording: Recording) -> None:
    """Those of numpy and torch, NaN and infinity; what is no number is left out."""
    torch = pytest.importorskip("torch")
    data = {
        "a": np.float32(0.5), "b": np.int32(2), "c": torch.tensor(1.5, requires_grad=True), "d": True, "e": -math.inf,
        "text": "x", "list": [1.0], "table": {"x": 1}, "none": None, "two": torch.zeros(2), "array": np.zeros(2),
    }  # fmt: skip
    before = dict(data)
    expected = {"verl.a": [0.5], "verl.b": [2], "verl.c": [1.5], "verl.d": [1], "verl.e": [-math.inf]}
    assert expected == logged(recording, data)
    assert before.keys() == data.keys()
    assert all(value is data[key] for key, value in before.items())


def test_nan_goes_out(recording: Recording) -> None:
    """Verl logs it where all samples were aborted."""
    (value,) = logged(recording, {"critic/score/mean": math.nan})[v.REWARD_SCORE]
    assert math.isnan(value)


def test_a_tensor_on_a_device_is_counted(recording: Recording, caplog: pytest.LogCaptureFixture) -> None:
    """It is not read, since that waits for the device."""
    torch = pytest.importorskip("torch")
    for step in range(2):
        log_metrics((), {"data": {"x": torch.empty((), device="meta"), "y": 1.0}, "step": step})
    assert 2 == state.dropped["metrics", "on_device"]
    assert 1 == sum("on a device" in line for line in caplog.messages)
    assert {"verl.y": [1.0, 1.0]} == logged(recording)


@pytest.mark.parametrize(("longest", "expected"), [(16, [0.25]), (15, [0.0])])
def test_share_of_responses_at_the_limit(recording: Recording, longest: int, expected: list[float]) -> None:
    """Verl's is the share of those as long as the longest: at the limit only if that one is."""
    read_settings((), {"config": settings(limit=16)})
    data = {"response_length/clip_ratio": 0.25, "response_length/max": longest}
    found = logged(recording, data)
    assert (expected, [0.25]) == (found[v.RESPONSE_CLIPPED], found["verl.response_length/clip_ratio"])


def test_without_settings_nothing_is_said_of_the_limit(recording: Recording) -> None:
    """As in a trainer that gives its trackers none."""
    read_settings((object(), "project", "experiment"), {})
    assert (frozenset(), None) == (meaning.others, meaning.limit)
    assert v.RESPONSE_CLIPPED not in logged(recording, {"response_length/clip_ratio": 0.25, "response_length/max": 16})


ALL = ("actor/loss", "response/aborted_ratio", "actor/entropy", "actor/kl_loss", "actor/ppo_kl", "actor/pg_clipfrac")


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({}, set()),
        ({"loss_agg_mode": "seq-mean-token-mean"}, set()),
        ({"loss_agg_mode": "seq-mean-token-sum"}, {v.ENTROPY, v.KL_REFERENCE}),
        ({"kl_loss_type": "abs"}, {v.KL_REFERENCE}),
        ({"loss_mode": "gspo"}, set()),
        ({"loss_mode": "geo_mean"}, {v.CLIP_FRACTION}),
        ({"loss_mode": "kl_cov"}, {v.CLIP_FRACTION, v.KL_POLICY}),
        ({"loss_mode": "own"}, {v.CLIP_FRACTION, v.KL_POLICY}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_settings_under_which_a_key_means_something_else(
    recording: Recording, changed: dict[str, str], lost: set[str]
) -> None:
    """It keeps verl's name then."""
    expected = {v.LOSS, v.ENTROPY, v.KL_REFERENCE, v.KL_POLICY, v.CLIP_FRACTION} - lost
    assert expected == names(recording, dict.fromkeys(ALL, 1.0), **changed)


@pytest.mark.parametrize(
    ("data", "changed", "expected"),
    [
        ({"actor/loss": 0, "actor/kl_loss": 1, "actor/reward_kl_penalty": 2}, {}, 1),
        ({"actor/loss": 0, "actor/kl_loss": 1, "actor/reward_kl_penalty": 2}, {"kl_loss_type": "abs"}, 2),
        ({"actor/kl_loss": 1, "actor/reward_kl_penalty": 2}, {}, 2),
        ({"actor/loss": 0, "actor/reward_kl_penalty": 2}, {"kl_penalty": "abs"}, None),
    ],
    ids=["both", "other-loss", "old-worker", "other-penalty"],
)
def test_one_number_for_the_reference(
    recording: Recording, data: dict[str, float], changed: dict[str, str], expected: float | None
) -> None:
    """The loss's if it is right, else that of the penalty in the reward."""
    read_settings((), {"config": settings(**changed)})
    assert ([expected] if expected else None) == logged(recording, data).get(v.KL_REFERENCE)


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ((), {v.ENTROPY, v.GRAD_NORM, v.LEARNING_RATE, v.REWARD_SCORE}),
        (
            ("response/aborted_ratio",),
            {v.ENTROPY, v.GRAD_NORM, v.LEARNING_RATE, v.REWARD_SCORE, v.KL_POLICY, v.CLIP_FRACTION},
        ),
        (("critic/loss",), {v.ENTROPY, v.GRAD_NORM, v.LEARNING_RATE, v.REWARD_SCORE, f"{v.LOSS_TERM} value"}),
    ],
    ids=["0.5", "0.7", "critic"],
)
def test_workers_of_older_versions(recording: Recording, beside: tuple[str, ...], expected: set[str]) -> None:
    """In 0.5 the first rank's numbers stay verl's, until 0.7 the losses that grow with the number of mini-batches."""
    older = ("actor/entropy", "actor/pg_loss", "actor/kl_loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/grad_norm")
    keys = (*older, "actor/lr", "critic/vf_loss", "critic/score/mean", *beside)
    assert expected == names(recording, dict.fromkeys(keys, 1.0))


def test_entropy_of_the_update_if_there_is_no_other(recording: Recording) -> None:
    """With the rollout's logprobs verl computes none before the update."""
    assert [2.0] == logged(recording, {"actor/loss": 1.0, "actor/entropy_loss": 2.0})[v.ENTROPY]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"val-core/gsm8k/reward/mean@8": 0.5, "val-core/gsm8k/reward/best@8/mean": 0.9}, [0.5]),
        ({"val-core/gsm8k/reward/mean@8": 0.5, "val-core/math/reward/mean@8": 0.9}, None),
        ({"val-core/gsm8k/acc/mean@8": 0.5}, None),
    ],
    ids=["one", "two-sources", "no-reward"],
)
def test_reward_of_an_evaluation(recording: Recording, data: dict[str, float], expected: list[float] | None) -> None:
    """The mean over its samples, which is there only if they are of one data source."""
    assert expected == logged(recording, data).get(f"{v.EVAL_REWARD} eval")
