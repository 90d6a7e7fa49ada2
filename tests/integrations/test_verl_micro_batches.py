"""Micro-batches of verl on a rank: tokens by kind, FLOPs of each forward, and their rates in the driver's steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import otel_rl
from otel_rl import vocabulary as v
from otel_rl.hooks.hook import wrap
from otel_rl.integrations.verl.hooks import INTEGRATION
from otel_rl.integrations.verl.micro_batches import fields_of
from otel_rl.single_controller.micro_batches import count_tokens
from tests.analysis.test_flops import forward_flops, train_flops
from tests.fixtures import Recording, milliseconds
from tests.integrations.ranks import CONFIG, Network, operations, rates, step, tokens

HOOKS = {hook.target.rpartition(":")[2]: hook for hook in INTEGRATION.hooks}
PROMPTS, MASKS = [3, 2, 7], [[1, 1], [1, 0, 1, 1], [0]]
"""A tool wrote one token of the second response; the last sample fills up the batch."""
LENGTHS = [5, 6]
"""Of the sequences that are trained."""
LORA = ("A.default", (4, 48)), ("B.default", (48, 4))
LOSS = torch.tensor(1.0)


class Fields(dict[str, Any]):
    """What a ``TensorDict`` has in common with a dictionary, and what it has more."""

    shape = (3,)

    def __len__(self) -> int:
        return 3


class Meta(SimpleNamespace):
    """What a ``KVBatchMeta`` tells of a batch whose values are elsewhere."""

    def __len__(self) -> int:
        return 3


class Engine(SimpleNamespace):
    """Stands for verl's engine."""

    __hash__ = object.__hash__


def nested(rows: list[Any]) -> Any:
    """Make a tensor of rows of different lengths."""
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def fields(**changes: Any) -> Fields:
    """Make a micro-batch of V1."""
    lengths = [prompt + len(mask) for prompt, mask in zip(PROMPTS, MASKS, strict=True)]
    found = {
        "input_ids": nested([[1] * length for length in lengths]),
        "responses": nested(MASKS),
        "loss_mask": nested(MASKS),
        "uid": SimpleNamespace(tolist=lambda: ["a", "a", "pad7"]),
        "use_remove_padding": True,
    }
    return Fields({key: value for key, value in {**found, **changes}.items() if value is not None})


def legacy() -> Fields:
    """Make one of the legacy trainer: responses and their masks are filled up, and no sample is known to fill it up."""
    masks = torch.tensor([mask + [0] * (4 - len(mask)) for mask in MASKS])
    real = [[0] * (7 - p) + [1] * (p + len(m)) + [0] * (4 - len(m)) for p, m in zip(PROMPTS, MASKS, strict=True)]
    return fields(responses=masks, loss_mask=masks, attention_mask=torch.tensor(real), uid=None)


def forward(rank: Recording, engine: Engine, batch: Fields, *, only: bool = False) -> None:
    """Compute a forward that takes 10 ms."""

    def compute(*_: object) -> tuple[torch.Tensor, dict[str, Any]]:
        rank.tick(10)
        return LOSS, {}

    wrap(HOOKS["FSDPEngineWithLMHead.forward_step"], compute)(engine, batch, None, only)


def engine(share: int = 1, **module: Any) -> Engine:
    """Make an engine that has built its module."""
    made = Engine(ulysses_sequence_parallel_size=share, module=Network(**module))
    wrap(HOOKS["FSDPEngine._build_fsdp_module"], lambda *_: None)(made, made.module)
    return made


@pytest.mark.parametrize(
    ("batch", "is_packed", "expected"),
    [
        (fields(), True, (5, 5, 8, 1)),
        (fields(), False, (5, 5, 13, 1)),
        (legacy(), True, (12, 5, 0, 2)),
        (fields(loss_mask=None), True, None),
        (fields(input_ids=torch.ones(3, 8)), True, None),
    ],
    ids=["V1", "rows of equal length", "legacy", "without a mask", "padded"],
)
def test_tokens_by_kind(batch: Fields, is_packed: bool, expected: tuple[int, ...] | None) -> None:
    """Prompts, what the policy wrote, what makes the batch full, and what tools wrote."""
    assert expected == count_tokens(fields_of(batch), is_packed=is_packed)


def test_a_step_of_a_rank(rank: Recording) -> None:
    """Each network counts its own operations; the last step trains nothing."""
    actor, critic = engine(), engine()
    with step(1, 0).use():
        with otel_rl.stage(v.LOGPROB, **{v.LOGPROB_KIND: "old"}):
            forward(rank, actor, fields(), only=True)
        with otel_rl.stage(v.VALUE):
            forward(rank, critic, fields(), only=True)
        for one in (critic, actor):
            with otel_rl.stage(v.TRAIN):
                forward(rank, one, fields())
                rank.tick(5)
        with otel_rl.stage("other"):
            forward(rank, actor, fields(), only=True)
    with step(2, 100).use():
        rank.tick(50)
    otel_rl.uninstrument()
    run = rank.run("job")
    (said, _) = (span.attributes for span in run.spans(None) if span.name == v.FORWARD)
    assert {
        v.BATCH_SIZE: 3,
        v.TOKENS: 11,
        v.TOKENS_PROMPT: 5,
        v.TOKENS_RESPONSE: 5,
        v.TOKENS_ENVIRONMENT: 1,
        v.TOKENS_PADDING: 8,
    } == {key: said[key] for key in said if key.startswith(("rl.batch", "rl.tokens"))}
    assert {"prompt": 10, "response": 10, "environment": 2, "padding": 16} == tokens(run)
    once, update = forward_flops(CONFIG, LENGTHS), train_flops(CONFIG, LENGTHS)
    assert {(v.LOGPROB, "old"): once, (v.VALUE, ""): once, (v.FORWARD, ""): 2 * update} == operations(run)
    expected = {"logprob": 2 * once / 0.02, "update": 2 * update / 0.03, "step": (2 * once + 2 * update) / 0.06}
    assert {scope: (60.0, pytest.approx(rate)) for scope, rate in expected.items()} == rates(run)
    assert [(60.0, pytest.approx(10 / 0.06)), (110.0, 0.0)] == [
        (milliseconds(one.time_ns), one.value) for one in run.points(v.TOKENS_RATE)
    ]
    assert [] == list(run.points(v.SAMPLES_RATE))


def test_ranks_that_split_sequences_count_their_share(rank: Recording) -> None:
    """Each of four has the same micro-batch."""
    with step(1, 0).use(), otel_rl.stage(v.TRAIN):
        forward(rank, engine(share=4), fields())
    otel_rl.uninstrument()
    run = rank.run("job")
    assert {"prompt": 1, "response": 1, "padding": 2} == tokens(run)
    assert {(v.FORWARD, ""): train_flops(CONFIG, LENGTHS) // 4} == operations(run)


@pytest.mark.parametrize("is_reference", [False, True])
def test_the_reference_may_be_the_actor_without_its_adapter(rank: Recording, is_reference: bool) -> None:
    """Its stage says so, and its adapter counts nothing."""
    at = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    actor = engine(
        named=[(f"{at}{name}.weight", SimpleNamespace(shape=shape, requires_grad=True)) for name, shape in LORA],
        parts=(SimpleNamespace(disable_adapters=is_reference),),
        peft_config={"default": SimpleNamespace(peft_type="LORA")},
    )
    data = Meta(tags=[], extra_info={"no_lora_adapter": True} if is_reference else {})
    with step(1, 0).use():
        hook = HOOKS["ActorRolloutRefWorker.compute_log_prob"]
        wrap(hook, lambda *_: forward(rank, actor, fields(), only=True))(None, data)
    otel_rl.uninstrument()
    found, whole = operations(rank.run("job")), forward_flops(CONFIG, LENGTHS)
    adapter = 0 if is_reference else sum(LENGTHS) * 2 * (4 * 48 + 48 * 4)
    assert {(v.LOGPROB, "ref" if is_reference else "old"): whole + adapter} == found


def test_outside_of_a_step_nothing_is_shown(recording: Recording) -> None:
    """A worker may be called before the first step: its tokens count all the same."""
    with otel_rl.stage(v.TRAIN):
        forward(recording, engine(), fields())
    run = recording.stop()
    assert ({}, 5) == (operations(run), tokens(run)["response"])
