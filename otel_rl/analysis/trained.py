"""Which weights of a model get gradients, by the names and shapes of its parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_rl.analysis.architecture import Config, Unknown, architecture

LAYER: Final = re.compile(r"\.(?:layers|h)\.(\d+)\.")
"""A decoder layer and its number, as models of transformers name it."""
ATTENTION: Final = re.compile(r"\.(?:self_attn|attn|attention)\.")
EXPERTS: Final = re.compile(r"\.experts\.")
ADAPTER: Final = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B)\b")
"""As PEFT names the matrices of LoRA."""
HEAD: Final = re.compile(r"(?:^|\.)(?:lm_head|embed_out|score|v_head)\.")
EMBEDDING: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe|embed_in)\.")
TOKENS: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in)\.")
"""Embeddings that are the head too where they are tied; positions (`wpe`) never are."""
UNCOUNTED: Final = re.compile(r"\.(?:gate|router|shared_expert_gate|lora_embedding_A)\.|bias")
"""Routers of a MoE, biases, and the half of an embedding's adapter that is a lookup: FLOPs leave them out."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the model names it."""

    name: str
    shape: tuple[int, ...]
    """Of the whole parameter, not of a shard."""
    is_trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Which weights get gradients; by default all of them."""

    attention: bool = True
    mlp: bool = True
    logits: bool = True
    first_layer: int = 0
    """The lowest layer that needs any gradient; below it there is no backward. The number of layers: none needs it."""
    adapters: int = 0
    """Weights of adapters (LoRA) that one token passes, all layers together; they are trained."""


FULL: Final = Trained()


def trained(parameters: Iterable[Parameter], config: Config) -> Trained:
    """Read which matrices are trained. Norms and biases need gradients to reach them and cost nothing by themselves.

    A trained embedding needs the gradient of the whole model above it. Where a part is trained in some of the layers
    above the first trained one, it counts as trained in all of them.

    Args:
        parameters: of the model, adapters among them.
        config: of the base model.

    Raises:
        Unknown: a configuration that cannot be read.
    """
    layers = len(architecture(config).layers)
    wanted = [parameter for parameter in parameters if parameter.is_trained]
    counted = [one for one in wanted if len(one.shape) > 1 and not UNCOUNTED.search(one.name)]
    matrices = [one for one in counted if not ADAPTER.search(one.name)]
    inside = [one for one in matrices if LAYER.search(one.name)]
    has_embedding = any(EMBEDDING.search(one.name) for one in wanted)
    heads = (HEAD, TOKENS) if config.get("tie_word_embeddings") else (HEAD,)
    return Trained(
        attention=any(ATTENTION.search(one.name) for one in inside),
        mlp=any(not ATTENTION.search(one.name) for one in inside),
        logits=any(head.search(one.name) for head in heads for one in matrices),
        first_layer=0 if has_embedding else min([layers, *map(_layer, wanted)]),
        adapters=sum(_passed(one, config) for one in counted if ADAPTER.search(one.name)),
    )


def _layer(parameter: Parameter) -> int:
    """Give the number of a parameter's layer; one above all layers (the final norm, the head) has the highest."""
    found = LAYER.search(parameter.name)
    return int(found[1]) if found else 1 << 30


def _passed(adapter: Parameter, config: Config) -> int:
    """Count the weights of an adapter that one token passes: of experts, the share that is active."""
    weights = math.prod(adapter.shape)
    if not EXPERTS.search(adapter.name):
        return weights
    active = config.get("num_experts_per_tok")
    if not isinstance(active, int):
        raise Unknown(f"num_experts_per_tok is {active!r}")
    return weights * active // _experts(config)


def _experts(config: Config) -> int:
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        number = config.get(name)
        if isinstance(number, int) and number > 0:
            return number
    raise Unknown("the number of experts is not said")
