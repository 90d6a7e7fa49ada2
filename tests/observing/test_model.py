"""What is read of a model: configuration, trained parts, whole shapes, head; and that nothing of it is kept."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.architecture import architecture
from otel_rl.analysis.flops import passes
from otel_rl.analysis.trained import FULL, Parameter, Trained
from otel_rl.observing.api import show
from otel_rl.observing.network import Network, formula_of, read
from tests.analysis.test_flops import QWEN_0_5B, train_flops

SMALL = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip


def qwen(kind: str = "Qwen2ForCausalLM", **changes: Any) -> Any:
    """Make a small model of transformers."""
    with torch.random.fork_rng():
        return getattr(transformers, kind)(transformers.Qwen2Config(**{**SMALL, **changes}))


def total(seen: Network, lengths: list[int]) -> int:
    """Count forward and backward."""
    return formula_of(seen).count(lengths, None, is_training=True)


@given(st.lists(st.integers(0, 3000), max_size=5), st.one_of(st.none(), st.integers(0, 500)), st.booleans())
def test_the_short_way_to_count_is_the_long_one(lengths: list[int], logits: int | None, is_windowed: bool) -> None:
    """With frozen layers, adapters and a head of its own; a model with windows goes the long way."""
    windows = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 12} if is_windowed else {}
    config = {**QWEN_0_5B, **windows}
    names = ["model.layers.9.mlp.up_proj.weight", "model.layers.7.self_attn.q_proj.lora_A.default.weight"]
    seen = Network(config, tuple(Parameter(name, (7, 896), is_trained=True) for name in names))
    formula = formula_of(seen)
    found = passes(architecture(config), lengths, formula.trained, logits=logits)
    assert is_windowed == (formula.costs is None)
    assert found.forward == formula.count(lengths, logits, is_training=False)
    whole = found.forward + found.input_gradient + found.weight_gradient
    assert whole == formula.count(lengths, logits, is_training=True)


def test_a_model_of_transformers_is_its_configuration_and_parameters() -> None:
    """All of them trained; the FLOPs are those of the configuration alone."""
    model = qwen()
    seen = read(model)
    assert ("qwen2", "", 0) == (seen.config["model_type"], seen.device, seen.shared_by)
    assert [(name, tuple(one.shape), True) for name, one in model.named_parameters()] == [
        (one.name, one.shape, one.is_trained) for one in seen.parameters
    ]
    assert FULL == formula_of(seen).trained
    assert total(read(model.config.to_dict()), [5, 9]) == train_flops(model.config.to_dict(), [5, 9])
    assert total(seen, [5, 9]) == train_flops(model.config.to_dict(), [5, 9])


def test_frozen_layers_and_adapters_are_seen() -> None:
    """As PEFT names them: in a base that is frozen."""
    model = qwen()
    for name, one in model.named_parameters():
        one.requires_grad_(name.startswith(("model.layers.2.", "lm_head", "model.norm")))
    assert Trained(first_layer=2) == formula_of(read(model)).trained
    model.requires_grad_(False)
    projection = model.model.layers[1].self_attn.q_proj
    projection.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(16, 4, bias=False)})
    projection.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(4, 16, bias=False)})
    into = 4 * 16 + 16 * (16 + 8 + 8)  # the adapter's first matrix, queries, keys and values
    none: dict[str, Any] = {"attention": False, "mlp": False, "logits": False}
    adapted = Trained(**none, first_layer=1, adapters=2 * 4 * 16, unreached=into)
    formula = formula_of(read(model))
    assert adapted == formula.trained
    counts = [formula.count([10], None, is_training=False, has_adapters=is_on) for is_on in (True, False)]
    assert 2 * 10 * 2 * 4 * 16 == counts[0] - counts[1]


def test_of_a_part_only_the_matrices_that_are_trained_count() -> None:
    """Beside norms, which need the gradients of inputs alone."""
    model = qwen()
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.input_layernorm.weight.requires_grad_(True)
    norms = total(read(model), [4, 6])
    for layer in model.model.layers[:2]:
        layer.self_attn.q_proj.weight.requires_grad_(True)
        layer.mlp.down_proj.weight.requires_grad_(True)
    assert 2 * 10 * 2 * (16 * 16 + 32 * 16) == total(read(model), [4, 6]) - norms


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:Unsupported layer type")  # PEFT's, of norms
@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("Lora", {"r": 2, "target_modules": ["q_proj"]}, (3 * 2 * (16 + 16), 512 + 2 * 16)),
        ("AdaLora", {"init_r": 2, "total_step": 9, "target_modules": ["q_proj"]}, (3 * 2 * (16 + 16), 512 + 2 * 16)),
        ("IA3", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}, (0, 512)),
        ("LNTuning", {"target_modules": ["input_layernorm"]}, (0, 0)),
        ("TrainableTokens", {"target_modules": ["embed_tokens"], "token_indices": [1]}, (0, 0)),
        ("OFT", {"target_modules": ["q_proj"], "oft_block_size": 8, "r": 0}, "OFT"),
        ("LoHa", {"target_modules": ["q_proj"], "r": 2}, "LOHA"),
        ("LoKr", {"target_modules": ["q_proj"], "r": 2}, "LOKR"),
        ("Vera", {"target_modules": ["q_proj"], "r": 2}, "VERA"),
        ("PromptTuning", {"num_virtual_tokens": 4}, "PROMPT_TUNING"),
        ("PrefixTuning", {"num_virtual_tokens": 4}, "PREFIX_TUNING"),
    ],
)
def test_adapters_of_peft_are_small_matrices_or_not_counted(
    kind: str, options: dict[str, Any], expected: tuple[int, int] | str
) -> None:
    """Those of LoRA, and vectors that cost nothing; what is computed otherwise is not guessed."""
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng():
        model = peft.get_peft_model(qwen(), getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", **options))
    found = formula_of(read(Wrapper(model)))
    if isinstance(expected, str):
        assert (None, f"adapter type {expected!r}") == (found.architecture, found.reason)
    else:
        adapters, unreached = expected  # of the first layer queries, keys and values, 512 weights
        assert Trained(attention=0, mlp=0, logits=False, adapters=adapters, unreached=unreached) == found.trained


def test_a_head_of_its_own_takes_the_place_of_the_vocabulary() -> None:
    """A critic has one output, by its parameters or by what its configuration says."""
    critic = qwen("Qwen2ForSequenceClassification", num_labels=1)
    assert 1 == formula_of(read(critic)).outputs
    assert total(read(critic), [7]) == train_flops(critic.config.to_dict(), [7], outputs=1)
    config = {**critic.config.to_dict(), "architectures": ["Qwen2ForSequenceClassification"], "num_labels": 1}
    assert 1 == formula_of(read(config)).outputs
    assert None is formula_of(read({**config, "architectures": ["Qwen2ForCausalLM"]})).outputs


class Wrapper(torch.nn.Module):
    """Holds a model as DDP and DeepSpeed do, with a configuration of its own."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.module = model
        self.config = {"train_batch_size": 8}


@pytest.mark.medium
def test_a_wrapped_model_is_the_model() -> None:
    """Also twice, and compiled."""
    model = qwen()
    expected = total(read(model), [6])
    for wrapped in (Wrapper(model), Wrapper(Wrapper(model)), torch.compile(model)):
        assert expected == total(read(wrapped), [6])


def test_a_partitioned_parameter_has_its_whole_shape() -> None:
    """As DeepSpeed keeps it; FSDP is tried on two ranks (``observing/test_observing_ranks.py``)."""
    expected, partitioned = read(qwen()), qwen()
    for one in partitioned.parameters():
        one.ds_shape, one.data = one.shape, torch.empty(0)
    assert [one.shape for one in expected.parameters] == [one.shape for one in read(partitioned).parameters]


def test_weights_of_four_bits_have_the_shape_of_the_whole() -> None:
    """As bitsandbytes keeps them: two in a byte of one column."""
    expected, packed = qwen(), qwen()
    for model in (expected, packed):
        model.requires_grad_(False)
        model.model.layers[1].mlp.down_proj.weight.requires_grad_(True)
    projection = packed.model.layers[1].mlp.up_proj
    projection.weight = torch.nn.Parameter(torch.zeros((256, 1), dtype=torch.uint8), requires_grad=False)
    projection.weight.quant_state = SimpleNamespace(shape=torch.Size((32, 16)))
    assert read(expected).parameters == read(packed).parameters
    assert total(read(expected), [7]) == total(read(packed), [7])


def test_flat_parameters_of_which_a_part_is_frozen_say_nothing() -> None:
    """Which weights those are cannot be known any more."""
    model = torch.nn.Module()
    model.config = qwen().config
    for name, is_trained in (("a", True), ("b", False)):
        inner = torch.nn.Module()
        inner._flat_param = torch.nn.Parameter(torch.zeros(3), requires_grad=is_trained)
        setattr(model, name, inner)
    found = formula_of(read(model))
    assert (None, True) == (found.architecture, found.reason.startswith("FSDP has flattened"))


def test_ranks_that_compute_one_model_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mesh of a sharded parameter, or by Megatron; of a mesh without such dimensions it is one."""
    model = torch.nn.Linear(2, 2)
    mesh = SimpleNamespace(mesh_dim_names=("dp", "tp"), size=lambda dim: (2, 4)[dim])
    model.weight.device_mesh = mesh
    assert 4 == read(model).shared_by
    mesh.mesh_dim_names = ("replicate", "shard")
    assert 1 == read(model).shared_by
    parallel = SimpleNamespace(
        model_parallel_is_initialized=lambda: True,
        get_tensor_model_parallel_world_size=lambda: 2,
        get_pipeline_model_parallel_world_size=lambda: 3,
        get_context_parallel_world_size=lambda: 1,
    )
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", parallel)
    assert 6 == read(model).shared_by


@pytest.mark.parametrize("kinds", [("plain", "tp"), ("dp", "dp_tp"), ("tp", "plain"), ("unnamed", "tp")])
def test_the_mesh_that_most_ranks_share_counts(kinds: tuple[str, str]) -> None:
    """Embeddings and norms are often left out of a plan: plain under TP alone, sharded over dp under FSDP2."""
    names = {"tp": ("tp",), "dp": ("dp",), "dp_tp": ("dp", "tp"), "unnamed": None}
    model = torch.nn.Linear(2, 2)
    for kind, one in zip(kinds, model.parameters(), strict=True):
        if kind != "plain":
            one.device_mesh = SimpleNamespace(mesh_dim_names=names[kind], size=lambda dim: 2)  # type: ignore[attr-defined]
    assert 2 == read(model).shared_by


def test_a_model_that_is_not_known_says_why(recording: Any) -> None:
    """A module without a configuration, and one of a kind that is not in the table."""
    assert "model type None" == formula_of(read(torch.nn.Linear(2, 2))).reason
    assert "model type 'mamba'" == formula_of(read({"model_type": "mamba"})).reason
    assert None is show("gpt2")


def test_nothing_of_a_model_is_kept(recording: Any) -> None:
    """It is read once, and goes when its owner lets go of it."""
    model = qwen()
    first = show(model)
    assert first is show(model)
    config = {"model_type": "mamba"}
    assert show(config) is show(config)
    known = show(config)
    config["model_type"] = "qwen2"
    assert known is not show(config)
    gone = [weakref.ref(model), weakref.ref(model.lm_head.weight)]
    del model
    gc.collect()
    assert [None, None] == [one() for one in gone]
