"""What is trained, read from the names and shapes of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from otel_rl.analysis.architecture import Unknown
from otel_rl.analysis.trained import FULL, Parameter, Trained, trained

DENSE = {
    "model_type": "qwen2",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}
MOE = DENSE | {
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 4,
    "tie_word_embeddings": False,
}
IN_LAYER = {
    "self_attn.q_proj.weight": (8, 8),
    "self_attn.q_proj.bias": (8,),
    "self_attn.o_proj.weight": (8, 8),
    "mlp.gate_proj.weight": (16, 8),
    "mlp.down_proj.weight": (8, 16),
    "input_layernorm.weight": (8,),
}
NAMES = {
    "model.embed_tokens.weight": (32, 8),
    **{f"model.layers.{layer}.{name}": shape for layer in range(3) for name, shape in IN_LAYER.items()},
    "model.norm.weight": (8,),
}
NONE: dict[str, Any] = {"attention": False, "mlp": False, "logits": False}


def model(is_trained: Callable[[str], bool], **more: tuple[int, ...]) -> list[Parameter]:
    """Make the parameters of a model, and of more that are trained."""
    return [Parameter(name, shape, is_trained(name)) for name, shape in NAMES.items()] + [
        Parameter(name, shape, True) for name, shape in more.items()
    ]


@pytest.mark.parametrize(
    ("is_trained", "expected"),
    [
        pytest.param(lambda name: True, FULL, id="everything"),
        pytest.param(lambda name: False, Trained(**NONE, first_layer=3), id="nothing"),
        pytest.param(lambda name: ".2." in name, Trained(logits=False, first_layer=2), id="the last layer"),
        pytest.param(
            lambda name: "mlp" in name and ".0." not in name,
            Trained(attention=False, logits=False, first_layer=1, unreached=256, unreached_core=True),
            id="the MLPs above the first layer",
        ),
        pytest.param(lambda name: "layernorm" in name, Trained(**NONE), id="norms need the gradients of inputs"),
        pytest.param(lambda name: "bias" in name, Trained(**NONE, unreached=64), id="so do biases"),
        pytest.param(
            lambda name: "embed" in name,
            Trained(attention=False, mlp=False, first_layer=0),
            id="the embedding, tied: as a head too, and through all layers",
        ),
        pytest.param(
            lambda name: name == "model.norm.weight",
            Trained(**NONE, first_layer=3, norm_alone=True),
            id="the final norm",
        ),
        pytest.param(
            lambda name: name == "model.norm.weight" or ".2." in name,
            Trained(logits=False, first_layer=2),
            id="the final norm above a layer",
        ),
        pytest.param(
            lambda name: "q_proj" in name,
            Trained(attention=3 * 64, mlp=0, logits=False, unreached=64),
            id="one of the matrices of attention, in all layers",
        ),
        pytest.param(
            lambda name: ".0.self_attn" in name or ".2.mlp.down_proj" in name,
            Trained(attention=2 * 64, mlp=128, logits=False, unreached=64),
            id="other parts in other layers",
        ),
    ],
)
def test_parts_and_the_lowest_layer(is_trained: Callable[[str], bool], expected: Trained) -> None:
    """By what requires a gradient."""
    assert expected == trained(model(is_trained), DENSE)


def test_a_head_of_its_own() -> None:
    """Untied, the embedding is no head; a critic's head and GPT-2's names are known."""
    untied = DENSE | {"tie_word_embeddings": False}
    head = {"lm_head.weight": (32, 8)}
    assert Trained(**NONE, first_layer=0) == trained(model(lambda name: "embed" in name), untied)
    assert Trained(attention=False, mlp=False, first_layer=3) == trained(model(lambda name: False, **head), untied)
    below = trained(model(lambda name: name == "model.norm.weight", **head), untied)
    assert Trained(attention=False, mlp=False, first_layer=3, norm_alone=True) == below
    gpt2 = {"transformer.h.1.attn.c_attn.weight": (8, 24), "score.weight": (1, 8)}
    both = 64 + 8 * 24  # the queries of the other names too
    found = trained(model(lambda name: False, **gpt2), untied)
    assert Trained(attention=8 * 24, mlp=0, first_layer=1, unreached=both) == found


def test_a_model_without_a_head_has_its_layers_at_the_top() -> None:
    """As AutoModel names them."""
    bare = [Parameter(one.name.removeprefix("model."), one.shape, one.is_trained) for one in model(lambda name: True)]
    assert FULL == trained(bare, DENSE)


@pytest.mark.parametrize("name", ["prompt_encoder.default.embedding.weight", "soft_prompt"])
def test_what_lies_nobody_knows_where_is_not_taken_to_lie_above(name: str) -> None:
    """A prompt that is learned lies below all layers; where all gradients are needed anyway it does not matter."""
    prompt = {name: (4, 8)}
    with pytest.raises(Unknown, match=f"^where {name!r} lies in the model$"):
        trained(model(lambda one: ".1." in one, **prompt), DENSE)
    assert Trained(logits=False) == trained(model(lambda one: ".layers." in one, **prompt), DENSE)


def test_adapters_are_counted_and_their_base_is_not() -> None:
    """LoRA of rank 2 in two of three layers, as PEFT names it; magnitudes and biases are no matrices."""
    base = "base_model.model.model.layers"
    lora = {
        f"{base}.{layer}.self_attn.q_proj.lora_{half}.default.weight": (2, 8) if half == "A" else (8, 2)
        for layer in (1, 2)
        for half in "AB"
    } | {f"{base}.2.self_attn.q_proj.lora_magnitude_vector.default.weight": (8,)}
    expected = Trained(**NONE, first_layer=1, adapters=64, unreached=64 + 16)
    assert expected == trained(model(lambda name: False, **lora), DENSE)


def test_vectors_of_adapters_are_no_matrices() -> None:
    """Those of AdaLoRA and of (IA)^3 scale activations, as norms do, whatever shape they are kept in."""
    layer = "base_model.model.model.layers.1"
    adalora = {
        f"{layer}.mlp.up_proj.lora_A.default": (2, 8),
        f"{layer}.mlp.up_proj.lora_B.default": (16, 2),
        f"{layer}.mlp.up_proj.lora_E.default": (2, 1),
    }
    expected = Trained(**NONE, first_layer=1, adapters=48, unreached=256 + 16, unreached_core=True)
    assert expected == trained(model(lambda name: False, **adalora), DENSE)
    ia3 = {f"{layer}.self_attn.k_proj.ia3_l.default": (8, 1), f"{layer}.mlp.down_proj.ia3_l.default": (1, 16)}
    assert Trained(**NONE, first_layer=1, unreached=64) == trained(model(lambda name: False, **ia3), DENSE)


def test_a_tied_head_is_trained_by_its_own_weight_alone() -> None:
    """Adapters of the embedding, one of them a lookup, and GPT-2's positions need all gradients of inputs, no more."""
    embedding = "base_model.model.model.embed_tokens.lora_embedding"
    lora = {f"{embedding}_A.default": (2, 32), f"{embedding}_B.default": (8, 2)}
    assert Trained(**NONE, first_layer=0, adapters=16) == trained(model(lambda name: False, **lora), DENSE)
    positions = {"transformer.wpe.weight": (64, 8)}
    assert Trained(**NONE, first_layer=0) == trained(model(lambda name: False, **positions), DENSE)
    tokens = {"transformer.wte.weight": (32, 8)}
    assert Trained(**NONE | {"logits": True}) == trained(model(lambda name: False, **tokens), DENSE)


def test_adapters_of_experts_count_for_the_active_ones() -> None:
    """2 of 4 experts; a router that is trained costs nothing that is counted."""
    lora = {
        **{f"model.layers.1.mlp.experts.{number}.up_proj.lora_A.default.weight": (2, 8) for number in range(4)},
        "model.layers.1.mlp.gate.weight": (4, 8),
    }
    expected = Trained(**NONE, first_layer=1, adapters=32, unreached=256 + 32, unreached_core=True)
    assert expected == trained(model(lambda name: False, **lora), MOE)
    fused = {"model.layers.2.mlp.experts.gate_up_proj": (4, 8, 8), "model.layers.2.mlp.experts.down_proj_bias": (4, 8)}
    expected = Trained(**NONE | {"mlp": 128}, first_layer=2, unreached=256 + 128, unreached_core=True)
    assert expected == trained(model(lambda name: False, **fused), MOE)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba"}, "model type 'mamba'"),
        (DENSE, "num_experts_per_tok is None"),
        (DENSE | {"num_experts_per_tok": 2}, "the number of experts is not said"),
    ],
)
def test_what_cannot_be_known_is_not_guessed(config: dict[str, Any], reason: str) -> None:
    """A model without a known configuration, experts without their number."""
    lora = {"model.layers.1.mlp.experts.0.up_proj.lora_A.default.weight": (2, 8)}
    with pytest.raises(Unknown, match=f"^{reason}$"):
        trained(model(lambda name: False, **lora), config)
