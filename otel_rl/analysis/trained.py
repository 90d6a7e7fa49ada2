"""Which weights of a model get gradients, by the names and shapes of its parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_rl.analysis.architecture import PARALLEL, Config, Unknown, architecture, number

LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
"""A decoder layer and its number, as models of transformers name it."""
ATTENTION: Final = re.compile(r"\.(?:self_attn|attn|attention)\.")
EXPERTS: Final = re.compile(r"\.experts\.")
ADAPTER: Final = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B)\b")
INTO_ADAPTER: Final = re.compile(r"\.lora_(?:A|embedding_A)\b")
"""Matrices of LoRA that read the base's input; the others read their output."""
ADAPTERS: Final = frozenset({"LORA", "ADALORA", "IA3", "LN_TUNING", "TRAINABLE_TOKENS"})
"""Known kinds of PEFT; others multiply matrices of another size than those that they train, or add tokens."""
HEAD: Final = re.compile(r"(?:^|\.)(?:lm_head|embed_out|score|v_head)\.")
NORM: Final = re.compile(r"(?:^|\.)(?:norm|ln_f|final_layer_?norm)\.")
EMBEDDING: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|wpe|embed_in)\.")
TOKENS: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|embed_in)\.")
"""Embeddings that may be tied to the head; positions (`wpe`) never are."""
UNCOUNTED: Final = re.compile(r"\.(?:gate|router|shared_expert_gate|lora_embedding_A|lora_E|ia3_l)\.|bias")
"""What FLOPs leave out: routers of a MoE, biases, lookups of an embedding's adapter, vectors of AdaLoRA and IA3."""

ORDER: Final = tuple(
    re.compile(rf"\.(?:{names})(?:_bias)?\b")
    for names in (
        "input_layernorm|ln_1",
        "[qkv]_proj|qkv_proj|query_key_value|c_attn|q_a_proj|kv_a_proj_with_mqa",
        "[qk]_norm|[qk]_layernorm|q_a_layernorm|kv_a_layernorm|sinks",
        "q_b_proj|kv_b_proj",
        r"o_proj|dense|(?:self_)?attn\.c_proj",
        "post_attention_layernorm|post_self_attn_layernorm|pre_feedforward_layernorm|ln_2",
        r"gate_proj|up_proj|gate_up_proj|fc1|c_fc|dense_h_to_4h|w1|w3|(?:down_proj|fc2)\.ia3_l",
        r"down_proj|fc2|mlp\.c_proj|dense_4h_to_h|w2",
        "post_feedforward_layernorm|post_mlp_layernorm|gate|router|shared_expert_gate",
    )
)
"""The parts of a layer in the order in which it computes them. (IA)^3 scales the input of an MLP's last matrix."""
INTO_ATTENTION, CORE, INTO_MLP = 1, 4, 6
"""Places in ``ORDER``; the attention itself comes before the matrix at ``CORE``."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the model names it."""

    name: str
    shape: tuple[int, ...]
    """The shape of the whole parameter, not of a shard."""
    is_trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Which weights get gradients, by default all of them.

    ``attention`` and ``mlp`` are numbers of weights that one token passes, all layers together; None means all of them
    from the first layer on.
    """

    attention: int | None = None
    mlp: int | None = None
    logits: bool = True
    first_layer: int = 0
    """The lowest layer that needs a gradient; the number of layers if none does."""
    norm_alone: bool = False
    """Whether the last norm is trained and no layer needs a gradient; then the head passes one on to the norm."""
    adapters: int = 0
    """Weights of adapters (LoRA) that one token passes, all layers together."""
    unreached: int = 0
    """Weights of the first layer, with adapters, that one token passes and whose input needs no gradient."""
    unreached_core: bool = False
    """Whether the attention itself of the first layer needs no gradients either."""


FULL: Final = Trained()


def trained(parameters: Iterable[Parameter], config: Config) -> Trained:
    """Find which matrices are trained. Norms and biases cost nothing, but gradients have to reach them.

    Args:
        parameters: of the model, with adapters.
        config: of the base model.

    Raises:
        Unknown: the configuration, or the place of a trained weight in the model, is unknown.
    """
    layers = len(architecture(config).layers)
    parameters = list(parameters)
    names = [one.name for one in parameters if one.is_trained]
    first = _first_layer(names, layers)
    counted = [one for one in parameters if len(one.shape) > 1 and not UNCOUNTED.search(one.name)]
    matrices = [one for one in counted if not ADAPTER.search(one.name)]
    inside = [one for one in matrices if _layer(one.name, -1) >= first]
    heads = (HEAD, TOKENS) if config.get("tie_word_embeddings") else (HEAD,)
    places = _places_of_trained(names, first, layers)
    unreached = [one for one in counted if _layer(one.name, -1) == first and not _is_reached(one.name, places, config)]
    return Trained(
        attention=_weights([one for one in inside if ATTENTION.search(one.name)], config),
        mlp=_weights([one for one in inside if not ATTENTION.search(one.name)], config),
        logits=any(one.is_trained and head.search(one.name) for head in heads for one in matrices),
        first_layer=first,
        norm_alone=first == layers and any(map(NORM.search, names)),
        adapters=sum(_passed(one, config) for one in counted if one.is_trained and ADAPTER.search(one.name)),
        unreached=sum(_passed(one, config) for one in unreached),
        unreached_core=bool(places) and min(places) >= CORE,
    )


def _first_layer(names: list[str], layers: int) -> int:
    if any(EMBEDDING.search(name) for name in names):
        return 0
    first = min([layers, *(_layer(name, layers) for name in names)])
    strange = [name for name in names if not _is_known(name)]
    if first and strange:
        raise Unknown(f"where {strange[0]!r} lies in the model")
    return first


def _is_known(name: str) -> bool:
    return any(known.search(name) for known in (LAYER, NORM, HEAD))


def _places_of_trained(names: list[str], first: int, layers: int) -> set[int]:
    """Return the places in the first layer that are trained; none if a gradient has to go through all of it."""
    is_below = any(EMBEDDING.search(name) or not _is_known(name) for name in names)
    return set() if is_below or first == layers else {_place(name) for name in names if _layer(name, layers) == first}


def _place(name: str) -> int:
    known = (place for place, pattern in enumerate(ORDER) if pattern.search(name))
    part = INTO_ATTENTION if ATTENTION.search(name) else INTO_MLP if EXPERTS.search(name) else 0
    return next(known, part)


def _is_reached(name: str, places: set[int], config: Config) -> bool:
    """Return whether the input of a matrix of the first layer needs a gradient."""
    place = _place(name)
    before = {one for one in places if one < place}
    if place >= INTO_MLP and _is_parallel(config):
        before -= set(range(INTO_ATTENTION, CORE + 1))
    is_second = ADAPTER.search(name) is not None and not INTO_ADAPTER.search(name)
    return not places or bool(before) or is_second


def _is_parallel(config: Config) -> bool:
    return config.get("model_type") in PARALLEL or config.get("use_parallel_residual") is True


def _layer(name: str, outside: int) -> int:
    found = LAYER.search(name)
    return int(found[1]) if found else outside


def _weights(part: list[Parameter], config: Config) -> int | None:
    """Count the trained weights that one token passes; None if all are trained."""
    wanted = [one for one in part if one.is_trained]
    return None if wanted and len(wanted) == len(part) else sum(_passed(one, config) for one in wanted)


def _passed(parameter: Parameter, config: Config) -> int:
    """Count the weights of a matrix that one token passes: of experts, the active share."""
    weights = math.prod(parameter.shape)
    if not EXPERTS.search(parameter.name):
        return weights
    return weights * number(config, "num_experts_per_tok") // _experts(config)


def _experts(config: Config) -> int:
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        count = config.get(name)
        if isinstance(count, int) and count > 0:
            return count
    raise Unknown("the number of experts is not said")
