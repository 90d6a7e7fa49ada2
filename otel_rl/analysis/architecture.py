"""What a model multiplies for one token, by its own configuration (the ``config.json`` of Hugging Face).

Other architectures than those listed here are unknown. A multiply-accumulate is one weight that one token passes. As in
Megatron, biases, activations, the embedding lookup and the router of a MoE do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Config = Mapping[str, Any]

GATED: Final = frozenset(
    {
        "cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite", "llama", "mistral", "olmo",
        "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm",
    }
)  # fmt: skip
"""Dense models with three matrices in the MLP."""
PLAIN: Final = frozenset({"gpt2", "gpt_neox", "phi", "starcoder2"})
"""Dense models with two matrices in the MLP."""
ALL_EXPERTS: Final = frozenset({"gpt_oss", "mixtral", "olmoe", "phimoe"})
"""MoE in every layer, with experts as wide as `intermediate_size`."""
SOME_EXPERTS: Final = frozenset({"qwen2_moe", "qwen3_moe"})
"""MoE in every `decoder_sparse_step`-th layer except `mlp_only_layers`."""
LATE_EXPERTS: Final = frozenset({"deepseek_v2", "deepseek_v3", "glm4_moe"})
"""MoE from layer `first_k_dense_replace` on, with shared experts."""
PARALLEL: Final = frozenset({"cohere", "cohere2", "phi"})
"""Models whose attention and MLP both read the layer's input; the configuration of others may say so, too."""
LATENT: Final = frozenset({"deepseek_v2", "deepseek_v3"})
"""Multi-head latent attention (MLA)."""
SLIDING_EVERYWHERE: Final = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
"""Without `layer_types`, `sliding_window` holds for every layer."""
SLIDING_ABOVE: Final = frozenset({"qwen2", "qwen3", "qwen2_moe", "qwen3_moe"})
"""Without `layer_types`, it holds from layer `max_window_layers` on, if `use_sliding_window` is set."""
ALIASES: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "num_experts": "num_local_experts",
}


class Unknown(ValueError):
    """The FLOPs of this configuration are unknown; the text says why."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer, per token."""

    attention: int
    core: int
    """The cost of one pair of positions: heads x (width of a query + width of a value)."""
    mlp: int
    """Weights of the MLP, or of the experts that one token passes."""
    window: int | None
    """Positions that a token sees, with itself; None for all before it."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only model."""

    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]


def architecture(config: Config) -> Architecture:
    """Read a configuration, ``model.config.to_dict()`` with the published names.

    Raises:
        Unknown: the model type, its attention or a number is unknown.
    """
    kind = config.get("model_type")
    if kind not in GATED | PLAIN | ALL_EXPERTS | SOME_EXPERTS | LATE_EXPERTS:
        part = ", which is not text alone" if "text_config" in config else ""
        raise Unknown(f"model type {kind!r}{part}")
    count = number(config, "num_hidden_layers")
    project = _latent if kind in LATENT else _grouped
    attention, core = project(config)
    windows = _windows(config, kind, count)
    mlps = _mlps(config, kind, count)
    layers = tuple(Layer(attention, core, mlp, window) for mlp, window in zip(mlps, windows, strict=True))
    return Architecture(number(config, "hidden_size"), number(config, "vocab_size"), layers)


def number(config: Config, name: str, default: int | None = None) -> int:
    """Return a number of a configuration; ``Unknown`` is raised for another value."""
    value = config.get(name)
    if value is None:
        value = config.get(ALIASES.get(name, name))
    if value is None:
        value = default
    if not isinstance(value, int) or value < 0:
        raise Unknown(f"{name} is {value!r}")
    return value


def _grouped(config: Config) -> tuple[int, int]:
    """Count multi-head and grouped-query attention: query, key, value and output projection."""
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    if not heads:
        raise Unknown("no attention heads")
    width = number(config, "head_dim", hidden // heads)
    groups = number(config, "num_key_value_heads", heads)
    return hidden * width * (2 * heads + 2 * groups), heads * 2 * width


def _latent(config: Config) -> tuple[int, int]:
    """Count multi-head latent attention; Megatron counts the norm of a compressed vector as one more column."""
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    rank, rope = number(config, "kv_lora_rank"), number(config, "qk_rope_head_dim")
    nope, value = number(config, "qk_nope_head_dim"), number(config, "v_head_dim")
    if config.get("q_lora_rank") is None:
        query = hidden * heads * (nope + rope)
    else:
        query = number(config, "q_lora_rank") * (hidden + heads * (nope + rope) + 1)
    key_value = rank * (hidden + heads * (nope + value) + 1) + hidden * rope
    return query + key_value + heads * value * hidden, heads * (nope + rope + value)


def _mlps(config: Config, kind: str, count: int) -> list[int]:
    """Count the weights that a token passes in the MLP of each layer."""
    hidden = number(config, "hidden_size")
    if kind in PLAIN:
        return [2 * hidden * number(config, "intermediate_size", 4 * hidden)] * count
    dense = 3 * hidden * number(config, "intermediate_size")
    if kind in GATED:
        return [dense] * count
    active = number(config, "num_experts_per_tok")
    if kind in ALL_EXPERTS:
        return [active * dense] * count
    width = number(config, "moe_intermediate_size")
    shared = 0
    if kind == "qwen2_moe":
        shared = number(config, "shared_expert_intermediate_size")
    elif kind in LATE_EXPERTS:
        shared = width * number(config, "n_shared_experts", 0)
    sparse = 3 * hidden * (active * width + shared)
    with_experts = _layers_with_experts(config, kind, count)
    return [sparse if layer in with_experts else dense for layer in range(count)]


def _layers_with_experts(config: Config, kind: str, count: int) -> set[int]:
    if kind in LATE_EXPERTS:
        first, step = number(config, "first_k_dense_replace", 0), number(config, "moe_layer_freq", 1)
        return {layer for layer in range(first, count) if layer % max(1, step) == 0}
    step = number(config, "decoder_sparse_step", 1)
    if not step or not number(config, "num_experts"):
        return set()
    return set(range(step - 1, count, step)).difference(config.get("mlp_only_layers") or ())


def _windows(config: Config, kind: str, count: int) -> Sequence[int | None]:
    types = config.get("layer_types")
    window = config.get("sliding_window")
    if types is not None:
        return _typed_windows(types, window, count)
    if not window or config.get("use_sliding_window") is False:
        return [None] * count
    if kind in SLIDING_EVERYWHERE:
        return [number(config, "sliding_window")] * count
    if kind in SLIDING_ABOVE:
        first = number(config, "max_window_layers", 0)
        return [None if layer < first else number(config, "sliding_window") for layer in range(count)]
    raise Unknown(f"which layers of {kind} have the sliding window is not said")


def _typed_windows(types: Sequence[str], window: Any, count: int) -> Sequence[int | None]:
    if len(types) != count:
        raise Unknown(f"{len(types)} layer types for {count} layers")
    strange = sorted(set(types) - {"full_attention", "sliding_attention"})
    if strange:
        raise Unknown(f"layer type {strange[0]!r}")
    if "sliding_attention" in types and (not isinstance(window, int) or window < 1):
        raise Unknown(f"sliding_window is {window!r}")
    return [window if one == "sliding_attention" else None for one in types]
