"""Which weights of a model get gradients, by the names and shapes of its parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_rl.analysis.architecture import Config, Unknown, architecture

LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
"""A decoder layer and its number, as models of transformers name it."""
ATTENTION: Final = re.compile(r"\.(?:self_attn|attn|attention)\.")
EXPERTS: Final = re.compile(r"\.experts\.")
ADAPTER: Final = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B)\b")
"""As PEFT names the matrices of LoRA."""
ADAPTERS: Final = frozenset({"LORA", "ADALORA", "IA3", "LN_TUNING", "TRAINABLE_TOKENS"})
"""Kinds of PEFT that are known: such matrices, vectors, norms, rows of an embedding.

Others multiply matrices of another size than those that they train, or add tokens.
"""
HEAD: Final = re.compile(r"(?:^|\.)(?:lm_head|embed_out|score|v_head)\.")
NORM: Final = re.compile(r"(?:^|\.)(?:norm|ln_f|final_layer_?norm)\.")
"""The one above all layers."""
EMBEDDING: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe|embed_in)\.")
TOKENS: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in)\.")
"""Embeddings that are the head too where they are tied; positions (`wpe`) never are."""
UNCOUNTED: Final = re.compile(r"\.(?:gate|router|shared_expert_gate|lora_embedding_A|lora_E|ia3_l)\.|bias")
"""What FLOPs leave out: routers of a MoE, biases, the half of an embedding's adapter that is a lookup, and vectors that
adapters (AdaLoRA, IA3) keep as matrices."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the model names it."""

    name: str
    shape: tuple[int, ...]
    """Of the whole parameter, not of a shard."""
    is_trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Which weights get gradients; by default all of them.

    Of attention and MLP it is the number of weights that one token passes, all layers together; None: all of them from
    the first layer on.
    """

    attention: int | None = None
    mlp: int | None = None
    logits: bool = True
    first_layer: int = 0
    """The lowest layer that needs any gradient; below it there is no backward. The number of layers: none needs it."""
    norm_alone: bool = False
    """Whether the norm above all layers is trained where no layer needs a gradient: the head passes one on to it."""
    adapters: int = 0
    """Weights of adapters (LoRA) that one token passes, all layers together; they are trained."""


FULL: Final = Trained()


def trained(parameters: Iterable[Parameter], config: Config) -> Trained:
    """Read which matrices are trained. Norms and biases need gradients to reach them and cost nothing by themselves.

    A trained embedding needs the gradient of the whole model above it.

    Args:
        parameters: of the model, adapters among them.
        config: of the base model.

    Raises:
        Unknown: a configuration that cannot be read, a trained weight whose place in the model is not known.
    """
    layers = len(architecture(config).layers)
    parameters = list(parameters)
    names = [one.name for one in parameters if one.is_trained]
    first = _first_layer(names, layers)
    counted = [one for one in parameters if len(one.shape) > 1 and not UNCOUNTED.search(one.name)]
    matrices = [one for one in counted if not ADAPTER.search(one.name)]
    inside = [one for one in matrices if _layer(one.name, -1) >= first]
    heads = (HEAD, TOKENS) if config.get("tie_word_embeddings") else (HEAD,)
    return Trained(
        attention=_weights([one for one in inside if ATTENTION.search(one.name)], config),
        mlp=_weights([one for one in inside if not ATTENTION.search(one.name)], config),
        logits=any(one.is_trained and head.search(one.name) for head in heads for one in matrices),
        first_layer=first,
        norm_alone=first == layers and any(map(NORM.search, names)),
        adapters=sum(_passed(one, config) for one in counted if one.is_trained and ADAPTER.search(one.name)),
    )


def _first_layer(names: list[str], layers: int) -> int:
    """Find the lowest layer that needs a gradient, by the names of what is trained."""
    if any(EMBEDDING.search(name) for name in names):
        return 0
    first = min([layers, *(_layer(name, layers) for name in names)])
    strange = [name for name in names if not any(known.search(name) for known in (LAYER, NORM, HEAD))]
    if first and strange:
        raise Unknown(f"where {strange[0]!r} lies in the model")
    return first


def _layer(name: str, outside: int) -> int:
    """Give the number of a parameter's layer, or what is given for one that is in none."""
    found = LAYER.search(name)
    return int(found[1]) if found else outside


def _weights(part: list[Parameter], config: Config) -> int | None:
    """Count the weights of a part that are trained and that one token passes; None where that is all of them."""
    wanted = [one for one in part if one.is_trained]
    return None if wanted and len(wanted) == len(part) else sum(_passed(one, config) for one in wanted)


def _passed(parameter: Parameter, config: Config) -> int:
    """Count the weights of a matrix that one token passes: of experts, the share that is active."""
    weights = math.prod(parameter.shape)
    if not EXPERTS.search(parameter.name):
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
