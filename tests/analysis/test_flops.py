"""FLOPs of published configurations by hand, step by step, and the rules around them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_rl.analysis.architecture import Config, architecture
from otel_rl.analysis.flops import Passes, attended, mfu, passes
from otel_rl.analysis.trained import FULL, Trained

QWEN_0_5B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN_30B_A3B = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "sliding_window": None,
    "vocab_size": 32000,
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def forward_flops(config: Config, lengths: Sequence[int], **head: int) -> int:
    """Count a forward alone: log-probabilities, values, rewards."""
    return passes(architecture(config), lengths, **head).forward


def train_flops(config: Config, lengths: Sequence[int], trained: Trained = FULL, **head: int) -> int:
    """Count forward and backward; where no gradient is needed at all, that is the forward."""
    found = passes(architecture(config), lengths, trained, **head)
    return found.forward + found.input_gradient + found.weight_gradient


def test_qwen_0_5b_by_hand() -> None:
    """One sequence of 2,048 tokens; a head is 896 / 14 = 64 wide."""
    query = output = 896 * 14 * 64  # 802,816
    key = value = 896 * 2 * 64  # 114,688: grouped-query attention
    mlp = 3 * 896 * 4864  # 13,074,432: gate, up and down
    logits = 896 * 151936  # 136,134,656: tied with the embedding, so its only use as a matrix
    weights = 24 * (query + key + value + output + mlp) + logits
    assert 493_961_216 == weights
    attention = 24 * 2 * (14 * 64) * 2048**2  # 2 x s^2 x heads x width: scores and values, half of each square
    forward = 2 * 2048 * weights + attention
    assert (2_023_265_140_736, 180_388_626_432) == (2 * 2048 * weights, attention)
    assert 2_203_653_767_168 == forward == forward_flops(QWEN_0_5B, [2048])
    assert 6_610_961_301_504 == train_flops(QWEN_0_5B, [2048])
    # 6 N s is 0.918 of Megatron's number, N = 494,032,768 parameters
    assert pytest.approx(0.918, abs=5e-4) == 6 * 494_032_768 * 2048 / 6_610_961_301_504


def test_qwen_7b_by_hand() -> None:
    """One sequence of 16,384 tokens; a head is 3584 / 28 = 128 wide."""
    projections = 3584 * 128 * (28 + 4 + 4 + 28)  # 29,360,128
    mlp = 3 * 3584 * 18944  # 203,685,888
    logits = 3584 * 152064  # 544,997,376
    weights = 28 * (projections + mlp) + logits
    assert 7_070_285_824 == weights
    attention = 28 * 2 * (28 * 128) * 16384**2
    forward = 2 * 16384 * weights + attention
    assert 285_555_195_641_856 == forward  # 231,679,125,880,832 + 53,876,069,761,024
    assert forward == forward_flops(QWEN_7B, [16384])
    assert 3 * forward == train_flops(QWEN_7B, [16384])
    assert pytest.approx(0.874, abs=5e-4) == 6 * 7_615_616_512 * 16384 / (3 * forward)


def test_qwen_30b_a3b_by_hand() -> None:
    """A MoE: 8 of 128 experts in every layer; heads 128 wide, although 2048 / 32 = 64."""
    projections = 2048 * 128 * (32 + 4 + 4 + 32)  # 18,874,368
    experts = 8 * 3 * 2048 * 768  # 37,748,736
    logits = 2048 * 151936  # 311,164,928
    weights = 48 * (projections + experts) + logits
    assert 3_029_073_920 == weights  # with 311 million of embeddings: the 3.3 billion active ones of its name
    attention = 48 * 2 * (32 * 128) * 4096**2
    assert 3 * (2 * 4096 * weights + attention) == train_flops(QWEN_30B_A3B, [4096])


def test_mixtral_by_hand() -> None:
    """2 of 8 experts, each as wide as a dense MLP."""
    projections = 4096 * 128 * (32 + 8 + 8 + 32)  # 41,943,040
    experts = 2 * 3 * 4096 * 14336  # 352,321,536
    weights = 32 * (projections + experts) + 4096 * 32000
    assert 12_747_538_432 == weights  # 12.9 billion active parameters with the embedding
    attention = 32 * 2 * (32 * 128) * 1024**2
    assert 3 * (2 * 1024 * weights + attention) == train_flops(MIXTRAL, [1024])


def test_deepseek_v2_lite_by_hand() -> None:
    """MLA without compressed queries, shared experts, a dense first layer."""
    query = 2048 * 16 * (128 + 64)  # 6,291,456
    compress = 2048 * (512 + 64)  # 1,179,648: to the latent vector, and the rotary key of all heads
    expand = 512 * 16 * (128 + 128)  # 2,097,152: keys and values of 16 heads
    norm = 512  # of the latent vector; Megatron counts it
    output = 16 * 128 * 2048  # 4,194,304
    projections = query + compress + expand + norm + output
    assert 13_763_072 == projections
    dense = 3 * 2048 * 10944  # 67,239,936
    sparse = 3 * 2048 * 1408 * (6 + 2)  # 69,206,016
    weights = 27 * projections + dense + 26 * sparse + 2048 * 102400
    assert 2_447_914_496 == weights
    attention = 27 * 16 * (128 + 64 + 128) * 4096**2  # scores 192 wide, values 128
    assert 3 * (2 * 4096 * weights + attention) == train_flops(DEEPSEEK_V2_LITE, [4096])


def test_deepseek_v3_by_hand() -> None:
    """MLA with compressed queries; the layer that predicts a further token is not run in post-training."""
    query = 7168 * 1536 + 1536 * 128 * 192 + 1536  # down, up to 128 heads, norm: 48,760,320
    latent = 7168 * (512 + 64) + 512 * 128 * 256 + 512  # 20,906,496
    output = 128 * 128 * 7168  # 117,440,512
    weights = 61 * (query + latent + output) + 3 * (3 * 7168 * 18432) + 58 * (3 * 7168 * 2048 * 9) + 7168 * 129280
    assert 36_518_291_456 == weights  # 37 billion active ones with the embedding
    attention = 61 * 128 * (192 + 128) * 4096**2
    assert 3 * (2 * 4096 * weights + attention) == train_flops(DEEPSEEK_V3, [4096])


lengths = st.lists(st.integers(0, 5000), max_size=6)


@given(lengths)
def test_ragged_lengths_count_their_own_squares(batch: list[int]) -> None:
    """A batch is the sum of its sequences; padding is in no length, and an empty one costs nothing."""
    alone = [train_flops(QWEN_0_5B, [length]) for length in batch]
    assert sum(alone) == train_flops(QWEN_0_5B, batch)
    assert 3 * forward_flops(QWEN_0_5B, batch) == train_flops(QWEN_0_5B, batch)


def test_padding_is_excluded() -> None:
    """Two sequences of 100 and 1,000 tokens are not two of 1,000."""
    projections = 2 * 1100 * 493_961_216
    assert projections + 43_008 * (100**2 + 1000**2) == forward_flops(QWEN_0_5B, [100, 1000])


def test_a_tied_head_counts_as_any_other() -> None:
    """The embedding is a lookup in both cases."""
    untied = {**QWEN_0_5B, "tie_word_embeddings": False}
    assert train_flops(untied, [512]) == train_flops(QWEN_0_5B, [512])


def test_fewer_logits_and_another_head() -> None:
    """Logits of the response only, as TRL computes them; a critic's head has one output."""
    head = 896 * 151936
    whole = forward_flops(QWEN_0_5B, [2048])
    assert whole - 2 * (2048 - 300) * head == forward_flops(QWEN_0_5B, [2048], logits=300)
    assert whole - 2 * 2048 * (head - 896) == forward_flops(QWEN_0_5B, [2048], outputs=1)


TOKENS = 1024
LAYER = 2 * TOKENS * 1_835_008, 2 * TOKENS * 13_074_432, 2 * (14 * 64) * TOKENS**2
HEAD = 2 * TOKENS * 896 * 151936
FORWARD = 24 * sum(LAYER) + HEAD
NONE = {"attention": False, "mlp": False, "logits": False}


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        pytest.param(Trained(), Passes(FORWARD, FORWARD, FORWARD), id="everything"),
        pytest.param(
            Trained(logits=False, first_layer=20),
            Passes(FORWARD, 4 * sum(LAYER) + HEAD, 4 * sum(LAYER)),
            id="the last four layers",
        ),
        pytest.param(
            Trained(attention=False, mlp=False, first_layer=24),
            Passes(FORWARD, 0, HEAD),
            id="the head: no gradient goes further down",
        ),
        pytest.param(Trained(**NONE, first_layer=24), Passes(FORWARD, 0, 0), id="nothing: a forward"),
        pytest.param(
            Trained(**NONE, first_layer=24, norm_alone=True),
            Passes(FORWARD, HEAD, 0),
            id="the final norm: a gradient goes through the head",
        ),
        pytest.param(
            Trained(attention=False, mlp=False, first_layer=24, norm_alone=True),
            Passes(FORWARD, HEAD, HEAD),
            id="the final norm and the head",
        ),
        pytest.param(
            Trained(mlp=False),
            Passes(FORWARD, FORWARD, 24 * (LAYER[0] + LAYER[2]) + HEAD),
            id="attention and head: the MLP passes gradients on",
        ),
        pytest.param(
            Trained(attention=4 * 802_816, mlp=2 * 4_358_144, logits=False, first_layer=20),
            Passes(FORWARD, 4 * sum(LAYER) + HEAD, 4 * LAYER[2] + 2 * TOKENS * (4 * 896 * 14 * 64 + 2 * 896 * 4864)),
            id="of the last four layers the queries, of two of them one matrix of the MLP",
        ),
        pytest.param(
            Trained(**NONE, adapters=1_000_000),
            Passes(
                FORWARD + 2 * TOKENS * 1_000_000,
                FORWARD + 2 * TOKENS * 1_000_000,
                24 * LAYER[2] + 2 * TOKENS * 1_000_000,
            ),
            id="LoRA: of the base only gradients of inputs, a third less",
        ),
    ],
)
def test_gradients_of_weights_only_where_they_are_trained(trained: Trained, expected: Passes) -> None:
    """Forward, gradients of inputs and of weights: a third each, and each only where it is computed."""
    assert expected == passes(architecture(QWEN_0_5B), [TOKENS], trained)
    total = expected.forward + expected.input_gradient + expected.weight_gradient
    assert total == train_flops(QWEN_0_5B, [TOKENS], trained)


@given(st.lists(st.integers(0, 60), max_size=4), st.integers(1, 70))
def test_a_window_counts_the_band_that_is_seen(batch: list[int], window: int) -> None:
    """Twice the pairs, without the half cell on the diagonal that Megatron's half square leaves out too."""
    pairs = sum(min(position, window) for length in batch for position in range(1, length + 1))
    diagonal = sum(min(length, window) for length in batch)
    assert 2 * pairs - diagonal == attended(batch, window)
    assert attended(batch) == attended(batch, 60)


def test_mfu_is_operations_over_peak_and_time() -> None:
    """2.2 PFLOP in 4 s on a device of 1 PFLOP/s; nothing without time or peak."""
    assert 0.55 == mfu(2_200_000_000_000_000, 1e15, 4.0)
    assert [None, None] == [mfu(1, 1e15, 0.0), mfu(1, 0.0, 1.0)]
