"""Operations of forward and backward beside those that torch counts, on models of transformers with frozen parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from otel_rl.analysis.flops import passes
from otel_rl.observing.network import formula_of, read

SMALL = {
    "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 48,
    "pad_token_id": 0, "tie_word_embeddings": False, "attn_implementation": "eager",
}  # fmt: skip
LATENT = {
    "q_lora_rank": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "first_k_dense_replace": 3, "num_key_value_heads": 4,
}  # fmt: skip
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "qwen2": ({"num_key_value_heads": 2}, ("q_proj", "k_proj", "v_proj"), ("o_proj", "gate_proj", "down_proj")),
    "gemma2": ({"head_dim": 8, "layer_types": ["full_attention"] * 3}, ("q_proj", "k_proj", "v_proj"), ("up_proj",)),
    "olmo2": ({}, ("q_proj", "k_proj", "v_proj"), ("o_proj", "up_proj", "down_proj")),
    "phi3": ({}, ("qkv_proj",), ("o_proj", "gate_up_proj", "down_proj")),
    "gpt2": ({"n_inner": 80}, ("c_attn",), ("attn.c_proj", "c_fc", "mlp.c_proj")),
    "starcoder2": ({"sliding_window": None}, ("q_proj", "k_proj", "v_proj"), ("o_proj", "c_fc", "c_proj")),
    "gpt_neox": ({}, ("query_key_value",), ("attention.dense", "dense_h_to_4h", "dense_4h_to_h")),
    "phi": ({}, ("q_proj", "k_proj", "v_proj"), ("dense", "fc1", "fc2")),
    "cohere": ({}, ("q_proj", "k_proj", "v_proj"), ("o_proj", "gate_proj", "down_proj")),
    "deepseek_v3": (LATENT, ("q_a_proj", "kv_a_proj_with_mqa"), ("o_proj",)),
}
"""Beside what they change: the matrices that read what comes into attention, which are trained together, and others."""
LENGTH, SEQUENCES = 24, 2
CASES = [
    pytest.param(kind, part, layer, id=f"{kind} {'+'.join(part)} from layer {layer}")
    for kind, (_, attention, others) in MODELS.items()
    for part in (attention, *((one,) for one in others), (*attention, *others))
    for layer in (0, 2)
]


def small(kind: str) -> Any:
    """Make a model of transformers."""
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **MODELS[kind][0]})
    with torch.random.fork_rng():
        return transformers.AutoModelForCausalLM.from_config(config)


def counted(call: Callable[[], Any]) -> tuple[int, Any]:
    """Let torch count the operations of a call; and its result."""
    with FlopCounterMode(display=False) as counter:
        result = call()
    return counter.get_total_flops(), result


def is_alike(model: Any, kind: str) -> None:
    """Compare forward and backward; the formula counts half a square of attention, and torch all of it."""
    seen = formula_of(read(model))
    assert seen.architecture is not None, seen.reason
    layers = tuple(replace(layer, core=2 * layer.core) for layer in seen.architecture.layers)
    found = passes(replace(seen.architecture, layers=layers), [LENGTH] * SEQUENCES, seen.trained)
    ids = torch.ones((SEQUENCES, LENGTH), dtype=torch.long)
    forward, output = counted(lambda: model(ids))
    backward, _ = counted(lambda: output.logits.sum().backward())
    exact = 0.002 if kind == "deepseek_v3" else 0  # Megatron counts the norms of compressed vectors
    assert pytest.approx(forward, rel=exact) == found.forward
    assert pytest.approx(backward, rel=exact) == found.input_gradient + found.weight_gradient


@pytest.mark.medium
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_trained_as_a_whole(kind: str) -> None:
    """All passes over all of it."""
    is_alike(small(kind), kind)


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # PEFT's, of GPT-2
@pytest.mark.parametrize(("kind", "part", "layer"), CASES)
def test_adapters_of_some_matrices(kind: str, part: tuple[str, ...], layer: int) -> None:
    """In the lowest layer that has any a gradient goes as far down as the first of them, and not through it."""
    peft = pytest.importorskip("peft")
    names = "|".join(part).replace(".", r"\.")
    targets = rf".*\.(?:layers|h)\.[{layer}-9]\..*?\b(?:{names})"
    with torch.random.fork_rng():
        options = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets)
        model = peft.get_peft_model(small(kind), options)
    is_alike(model, kind)


@pytest.mark.medium
@pytest.mark.parametrize("kind", MODELS)
def test_frozen_parts(kind: str) -> None:
    """Norms and biases cost nothing by themselves, and a gradient has to reach them."""
    for part in ("norm", "ln_", "bias", "down_proj", "mlp"):
        model = small(kind)
        for name, one in model.named_parameters():
            one.requires_grad_(part in name and "q_norm" not in name and "k_norm" not in name)
        if any(one.requires_grad for one in model.parameters()):
            is_alike(model, kind)
