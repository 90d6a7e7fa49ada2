"""Configurations against the matrices of the real models, and what cannot be read from one."""

from __future__ import annotations

from typing import Any

import pytest

from otel_rl.analysis import architecture as known
from otel_rl.analysis.architecture import Unknown, architecture

SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "head_dim": 16,
}
EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "num_local_experts": 6,
    "num_experts": 6,
    "n_routed_experts": 6,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [3],
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "num_key_value_heads": 4,
}
DENSE = {"model_type": "llama", **{name: value for name, value in SMALL.items() if name != "head_dim"}}
ALL = sorted(known.GATED | known.PLAIN | known.ALL_EXPERTS | known.SOME_EXPERTS | known.LATE_EXPERTS)


def real(kind: str) -> tuple[dict[str, Any], int]:
    """Make a small model of a type without memory; give its configuration and the weights that one token passes."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    given = dict(SMALL)
    if kind == "gpt2":
        given = {"n_embd": 48, "n_inner": 80, "n_layer": 4, "n_head": 4, "vocab_size": 96}
    elif kind in known.LATENT:
        given |= EXPERTS | LATENT
        del given["head_dim"]
    elif kind not in known.GATED | known.PLAIN:
        given |= EXPERTS
    elif kind == "stablelm":  # its configuration has no such number
        del given["head_dim"]
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.AutoConfig.for_model(kind, **given, **tokens)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = 0
    for name, parameter in model.named_parameters(remove_duplicate=False):
        is_latent_norm = name.endswith(("q_a_layernorm.weight", "kv_a_layernorm.weight"))
        is_matrix = parameter.ndim > 1 and "embed" not in name and ".wte." not in name and ".wpe." not in name
        is_router = name.endswith((".gate.weight", ".router.weight", ".shared_expert_gate.weight"))
        is_bias = "bias" in name.rpartition(".")[2]
        if is_latent_norm or (is_matrix and not is_router and not is_bias):
            is_routed = ".experts." in name and "shared" not in name
            weights += parameter.numel() * 2 // 6 if is_routed else parameter.numel()
    return config.to_dict(), weights


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_weights_are_those_of_the_real_model(kind: str) -> None:
    """Of every known type: all matrices of layers and head, of the experts those that a token passes."""
    config, expected = real(kind)
    found = architecture(config)
    assert expected == found.hidden * found.vocabulary + sum(layer.attention + layer.mlp for layer in found.layers)


def windows(config: dict[str, Any]) -> list[int | None]:
    """List the windows of the layers."""
    return [layer.window for layer in architecture(config).layers]


def test_windows_by_layer() -> None:
    """By the types of the layers where they are listed, else by the rule of the model type."""
    full, sliding = "full_attention", "sliding_attention"
    assert [None] * 4 == windows(DENSE)
    assert [7, None, 7, None] == windows(DENSE | {"layer_types": [sliding, full] * 2, "sliding_window": 7})
    assert [7] * 4 == windows(DENSE | {"model_type": "mistral", "sliding_window": 7})
    qwen = DENSE | {"model_type": "qwen2", "sliding_window": 7, "max_window_layers": 3}
    assert [None, None, None, 7] == windows(qwen | {"use_sliding_window": True})
    assert [None] * 4 == windows(qwen | {"use_sliding_window": False})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "model type None"),
        ({"model_type": "qwen3_next"}, "model type 'qwen3_next'"),
        ({"model_type": "qwen2_5_vl", "text_config": {}}, "model type 'qwen2_5_vl', which is not text alone"),
        (DENSE | {"hidden_size": None}, "hidden_size is None"),
        (DENSE | {"vocab_size": "many"}, "vocab_size is 'many'"),
        (DENSE | {"intermediate_size": [80, 90]}, r"intermediate_size is \[80, 90\]"),
        (DENSE | {"num_attention_heads": 0}, "no attention heads"),
        (DENSE | {"layer_types": ["full_attention"]}, "1 layer types for 4 layers"),
        (DENSE | {"layer_types": ["linear_attention"] * 4}, "layer type 'linear_attention'"),
        (DENSE | {"layer_types": ["sliding_attention"] * 4}, "sliding_window is None"),
        (DENSE | {"sliding_window": 9}, "which layers of llama have the sliding window is not said"),
        (DENSE | {"model_type": "mixtral"}, "num_experts_per_tok is None"),
    ],
)
def test_what_cannot_be_read_has_a_reason(config: dict[str, Any], reason: str) -> None:
    """A number is never made up."""
    with pytest.raises(Unknown, match=f"^{reason}$"):
        architecture(config)


def test_defaults_of_old_configurations() -> None:
    """No key-value heads: as many as heads; GPT-2 names things otherwise and widens four times."""
    one = architecture(DENSE | {"num_key_value_heads": None}).layers[0]
    assert (48 * 12 * 16, 4 * 24, 3 * 48 * 80, None) == (one.attention, one.core, one.mlp, one.window)
    gpt2 = {"model_type": "gpt2", "n_embd": 48, "n_inner": None, "n_layer": 1, "n_head": 4, "vocab_size": 96}
    assert 2 * 48 * 4 * 48 == architecture(gpt2).layers[0].mlp


@pytest.mark.parametrize(
    ("kind", "more", "sparse"),
    [
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1]),
        ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": None}, [1, 3]),
        ("qwen3_moe", {"decoder_sparse_step": None, "mlp_only_layers": []}, [0, 1, 2, 3]),
        ("glm4_moe", {"first_k_dense_replace": 1}, [1, 2, 3]),
        ("glm4_moe", {"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2]),
        ("olmoe", {}, [0, 1, 2, 3]),
    ],
)
def test_which_layers_have_experts(kind: str, more: dict[str, Any], sparse: list[int]) -> None:
    """Each model type has a rule of its own."""
    config = DENSE | EXPERTS | {"model_type": kind, "n_shared_experts": 0} | more
    width = 80 if kind == "olmoe" else 24
    expected = [3 * 48 * 2 * width if layer in sparse else 3 * 48 * 80 for layer in range(4)]
    assert expected == [layer.mlp for layer in architecture(config).layers]


def test_a_moe_without_experts_is_dense() -> None:
    """`num_experts` or `decoder_sparse_step` 0 turn the experts off."""
    dense = 3 * 48 * 80
    moe = DENSE | EXPERTS | {"model_type": "qwen3_moe"}
    for off in ({"num_experts": 0, "num_local_experts": 0}, {"decoder_sparse_step": 0}):
        assert [dense] * 4 == [layer.mlp for layer in architecture(moe | off).layers]
