"""Micro-batches of ROLL on a rank: tokens by kind, FLOPs of each forward, and their rates in the driver's steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.roll.hooks import INTEGRATION
from tests.analysis.test_flops import forward_flops, train_flops
from tests.fixtures import Recording
from tests.integrations.ranks import CONFIG, Network, operations, rates, step, tokens

HOOKS = {hook.target.rpartition(":")[2]: hook for hook in INTEGRATION.hooks}
WHOLE = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
POLICY = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 1], [0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0]])
"""A tool wrote one token of the second response."""
PROMPT = torch.tensor([[0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]).bool()
LENGTHS = [4, 6, 3, 5]
LOGITS = torch.zeros(1)


class Strategy(SimpleNamespace):
    """Stands for ROLL's strategy."""

    __hash__ = object.__hash__


class Tensors(dict[str, Any]):
    """Stands for a ``TensorDict``."""

    batch_size = (4,)


def strategy(cp_size: int = 1) -> Strategy:
    """Make a strategy that has made its model."""
    made = Strategy(model=Network(), worker=SimpleNamespace(rank_info=SimpleNamespace(cp_size=cp_size)))
    wrap(HOOKS["FSDP2InferStrategy.initialize_fsdp2_model"], lambda *_: None)(made, made.model)
    return made


def forward(rank: Recording, by: Strategy, mask: torch.Tensor) -> None:
    """Compute a forward that takes 10 ms."""

    def compute(*_: object) -> torch.Tensor:
        rank.tick(10)
        return LOGITS

    wrap(HOOKS["FSDP2InferStrategy._fsdp2_forward"], compute)(by, mask, mask, None, {})


def update(rank: Recording, by: Strategy, size: int = 2, **tensors: Any) -> None:
    """Train a batch in micro-batches."""

    def train(*_: object) -> None:
        for row in range(0, 4, size):
            forward(rank, by, WHOLE[row : row + size])

    batch = SimpleNamespace(batch=Tensors(attention_mask=WHOLE, **tensors))
    wrap(HOOKS["FSDP2TrainStrategy.train_step"], train)(by, batch, None)


def said(rank: Recording) -> list[tuple[Any, ...]]:
    """What each forward says: samples, tokens, those of prompt, response, environment and padding."""
    keys = v.BATCH_SIZE, v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE, v.TOKENS_ENVIRONMENT, v.TOKENS_PADDING
    spans = sorted(rank.run("job").spans(None), key=lambda span: span.start_ns)
    return [tuple(span.attributes.get(key) for key in keys) for span in spans if span.name == v.FORWARD]


def test_a_step_of_a_rank(rank: Recording) -> None:
    """Log-probabilities before the update; each of its forwards says what its rows hold."""
    actor = strategy()
    with step(0, 0).use():
        with otel_rl.stage(v.LOGPROB, **{v.LOGPROB_KIND: "old"}):
            forward(rank, actor, WHOLE)
        with otel_rl.stage(v.TRAIN):
            update(rank, actor, response_mask=POLICY, prompt_mask=PROMPT)
        with otel_rl.stage("other"):
            forward(rank, actor, WHOLE)
    with step(1, 100).use():
        rank.tick(50)
    otel_rl.uninstrument()
    assert [(2, 10, 5, 4, 1, 2), (2, 8, 5, 3, 0, 4)] == said(rank)
    run = rank.run("job")
    assert {"prompt": 10, "response": 7, "environment": 1, "padding": 6} == tokens(run)
    once, trained = forward_flops(CONFIG, LENGTHS), train_flops(CONFIG, LENGTHS)
    assert {(v.LOGPROB, "old"): once, (v.FORWARD, ""): trained} == operations(run)
    expected = {"logprob": once / 0.01, "update": trained / 0.02, "step": (once + trained) / 0.04}
    assert {scope: pytest.approx(rate) for scope, rate in expected.items()} == {
        scope: rate for scope, (_, rate) in rates(run).items()
    }
    assert [pytest.approx(7 / 0.04), 0.0] == [one.value for one in run.points(v.TOKENS_RATE)]


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({"response_mask": POLICY}, {"prompt": 11, "response": 7, "padding": 6}),
        ({}, {}),
    ],
    ids=["without a mask of prompts", "without a mask of responses"],
)
def test_masks_that_a_batch_lacks(rank: Recording, tensors: dict[str, Any], expected: dict[str, float]) -> None:
    """What the policy did not write is the prompt; without responses no kind is known, but all operations are."""
    with step(0, 0).use(), otel_rl.stage(v.TRAIN):
        update(rank, strategy(), **tensors)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert expected == tokens(run)
    assert [(2, 10, 2), (2, 8, 4)] == [(one[0], one[1], one[-1]) for one in said(rank)]
    assert {(v.FORWARD, ""): train_flops(CONFIG, LENGTHS)} == operations(run)


def test_ranks_that_split_sequences_count_their_share(rank: Recording) -> None:
    """Both of two have the same micro-batch."""
    with step(0, 0).use(), otel_rl.stage(v.TRAIN):
        update(rank, strategy(cp_size=2), size=4, response_mask=POLICY)
    otel_rl.uninstrument()
    run = rank.run("job")
    assert {"prompt": 5, "response": 3, "padding": 3} == tokens(run)
    assert {(v.FORWARD, ""): train_flops(CONFIG, LENGTHS) // 2} == operations(run)


def test_more_rows_than_the_batch_has(rank: Recording) -> None:
    """Where micro-batches are no rows of it, the mask of the forward is all that is known."""
    actor = strategy()

    def train(*_: object) -> None:
        forward(rank, actor, WHOLE.repeat(2, 1))

    batch = SimpleNamespace(batch=Tensors(attention_mask=WHOLE, response_mask=POLICY))
    with step(0, 0).use(), otel_rl.stage(v.TRAIN):
        wrap(HOOKS["FSDP2TrainStrategy.train_step"], train)(actor, batch, None)
    otel_rl.uninstrument()
    assert [(8, 36, None, None, None, 12)] == said(rank)
    assert {} == tokens(rank.run("job"))
