"""The forward of a micro-batch."""

from typing import Any

from tests.nemo_rl.world import tick


def forward_with_post_processing_fn(
    model: Any,
    post_processing_fn: Any,
    processed_mb: Any,
    is_reward_model: Any = False,
    allow_flash_attn_args: Any = True,
    global_valid_seqs: Any = None,
    global_valid_toks: Any = None,
    sampling_params: Any = None,
    sequence_dim: Any = 1,
) -> Any:
    tick(1)
