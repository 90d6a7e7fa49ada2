"""Healthy programs that handle batches in unusual ways: nothing is said of them, and no evaluation is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import otel_rl
from otel_rl import vocabulary as v
from tests.analysis.test_flops import QWEN_0_5B
from tests.fixtures import Recording
from tests.observing.test_api import mismatches, numbers

DRAW = torch.Generator().manual_seed(0)
X = torch.randint(1, 1000, (8, 6), generator=DRAW)
LENGTHS = [4, 3, 5, 5]
RIGHT = (torch.arange(6) < torch.tensor(LENGTHS)[:, None]).long()
LEFT = RIGHT.flip(1)
PADDED = X[:4] * RIGHT
ROLLED = torch.stack([torch.roll(row, 6 - length) for row, length in zip(PADDED, LENGTHS, strict=True)])


def see(stage: str, model: Any = None, **batch: Any) -> None:
    """Show a batch in a stage."""
    with otel_rl.stage(stage):
        otel_rl.observe(model=model, batch=batch)


def filtered() -> None:
    """Half of the samples carry no signal; two epochs over the others."""
    see("sample", input_ids=X, sample_ids=torch.arange(8))
    for _ in range(2):
        see("train", input_ids=X[:4], sample_ids=torch.arange(4))


def packed() -> None:
    """Two samples to a row, two epochs."""
    see("sample", input_ids=X[:4])
    for _ in range(2):
        see("train", input_ids=X[:4].reshape(2, 12), attention_mask=torch.ones(2, 12), lengths=[6] * 4)


def packed_once() -> None:
    """As many samples as before, in fewer rows."""
    see("sample", input_ids=X[:4], sample_ids=torch.arange(4))
    see("train", input_ids=X[:4].reshape(2, 12), lengths=[6] * 4, sample_ids=torch.arange(4))


def exchanged() -> None:
    """Shuffled over all ranks."""
    see("sample", input_ids=X[:4], sample_ids=torch.arange(4))
    see("train", input_ids=X[2:6], sample_ids=torch.arange(2, 6))


def off_policy() -> None:
    """The rollout of the step before."""
    see("sample", input_ids=X[:4], sample_ids=torch.arange(4))
    see("logprob", input_ids=X[4:], sample_ids=torch.arange(4, 8))
    see("train", input_ids=X[4:], sample_ids=torch.arange(4, 8))


def trimmed() -> None:
    """Each micro-batch as wide as its longest sequence."""
    see("sample", input_ids=ROLLED, attention_mask=LEFT)
    see("train", input_ids=ROLLED[:2, 2:], attention_mask=LEFT[:2, 2:])
    see("train", input_ids=ROLLED[2:, 1:], attention_mask=LEFT[2:, 1:])


def padded_otherwise() -> None:
    """The engine's on the left, training's on the right."""
    see("sample", input_ids=ROLLED, attention_mask=LEFT)
    see("train", input_ids=PADDED, attention_mask=RIGHT)


def with_lengths() -> None:
    """Nobody says where the padding is."""
    see("sample", input_ids=PADDED, lengths=LENGTHS)
    see("train", input_ids=PADDED[:2, :4], lengths=LENGTHS[:2])
    see("train", input_ids=PADDED[2:, :5], lengths=LENGTHS[2:])


def two_models() -> None:
    """Old and reference log-probabilities, then actor and critic, by turns."""
    see("sample", input_ids=X)
    for stage in ("logprob", "train.forward"):
        for rows in (slice(0, 4), slice(4, 8)):
            for model in (QWEN_0_5B, {**QWEN_0_5B, "num_hidden_layers": 3}):
                see(stage, model, input_ids=X[rows])


def two_of_one_configuration() -> None:
    """Policy and reference by turns, each with a mapping of its own, and with one that is made for each call."""
    see("sample", input_ids=X)
    kept = dict(QWEN_0_5B), dict(QWEN_0_5B)
    for stage in ("logprob", "value"):
        for rows in (slice(0, 4), slice(4, 8)):
            for model in kept:
                see(stage, model if stage == "logprob" else dict(model), input_ids=X[rows])


def two_kinds() -> None:
    """One model with and without its adapters."""
    see("sample", input_ids=X)
    for rows in (slice(0, 4), slice(4, 8)):
        for kind in ("old_logprobs", "ref_logprobs"):
            see("logprob", **{"input_ids": X[rows], kind: -torch.ones(4, 6)})


def one_prediction_less() -> None:
    """The engine gives a logprob to each token, training one to each prediction."""
    rolled = -torch.rand(8, 6, generator=torch.Generator().manual_seed(1))
    see("train", input_ids=X, rollout_logprobs=rolled, logprobs=rolled[:, 1:])


def without_a_batch() -> None:
    """One sequence."""
    see("train", input_ids=X[0], logprobs=-torch.ones(6))


def learning() -> None:
    """In stages that are none of ours, or none that go forward."""
    for stage in ("update", "train.backward"):
        see(stage, input_ids=X, rollout_logprobs=-torch.ones(8, 6), logprobs=-torch.ones(8, 6) * 3)


def evaluating() -> None:
    """As many samples as in training."""
    see("sample", input_ids=X)
    for _ in range(2):
        see("train", input_ids=X)
    with otel_rl.stage("evaluate"):
        see("sample", input_ids=X + 1)


@pytest.mark.parametrize(
    "program",
    [
        filtered, packed, packed_once, exchanged, off_policy, trimmed, padded_otherwise, with_lengths, two_models,
        two_of_one_configuration, two_kinds, one_prediction_less, without_a_batch, learning, evaluating,
    ],
)  # fmt: skip
def test_nothing_is_said(recording: Recording, program: Callable[[], None]) -> None:
    """No fault, nothing left out; the step before it and the one behind it are clean too."""
    for number in (1, 2):
        with otel_rl.step(number):
            program()
    run = recording.stop()
    assert ([], {}) == (mismatches(run), numbers(run, v.SELF_DROPPED))


def test_a_fault_is_found_under_other_padding(recording: Recording) -> None:
    """By its own name."""
    with otel_rl.step(1):
        see("sample", input_ids=ROLLED, attention_mask=LEFT)
        see("train", input_ids=PADDED[[1, 0, 2, 3]], attention_mask=RIGHT[[1, 0, 2, 3]])
    assert [(1, "rl.sample -> rl.train", "permuted batch")] == mismatches(recording.stop())


def test_logprobs_of_which_one_has_a_column_less_are_aligned_at_their_ends(recording: Recording) -> None:
    """All of them are compared, each with that of its own token."""
    rolled = -torch.rand(8, 6, generator=torch.Generator().manual_seed(1))
    with otel_rl.step(1):
        see("train", input_ids=X, rollout_logprobs=rolled, logprobs=rolled[:, 1:])
    (row,) = recording.stop().logs(v.LEDGER)
    assert (40.0, 0.0) == row.attributes[v.LEDGER_LOGPROBS][:2]  # type: ignore[index]


@pytest.mark.parametrize("around", ["mode", "evaluate", "far"])
def test_an_evaluation_is_no_training(recording: Recording, around: str) -> None:
    """Its batches are in no counter and no row, its time in no scope: said by itself or by whatever is around it."""
    with otel_rl.step(1):
        with otel_rl.stage("logprob"):
            otel_rl.observe(model=QWEN_0_5B, batch={"lengths": [2048]})
            recording.tick(500)
        outer = otel_rl.stage("mine", mode="eval") if around == "mode" else otel_rl.stage("evaluate")
        with outer, otel_rl.stage("mine" if around == "far" else "other"), otel_rl.stage("logprob"):
            otel_rl.observe(batch={"input_ids": X, "loss": torch.tensor(torch.nan)})
            recording.tick(1500)
    run = recording.stop()
    forward = 2_203_653_767_168
    assert ({"rl.logprob": [forward]}, [], []) == (numbers(run, v.FLOPS), mismatches(run), list(run.logs(v.LEDGER)))
    assert {"logprob": [forward / 0.5], "step": [forward / 2.0]} == numbers(run, v.FLOPS_RATE)
