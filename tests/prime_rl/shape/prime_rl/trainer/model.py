"""The model."""

from typing import Any

from tests.prime_rl.world import tick


def setup_model(config: Any, parallel_dims: Any, loading_from_checkpoint_later: Any = False) -> Any:
    tick(1)


def forward(
    model: Any,
    input_ids: Any,
    position_ids: Any,
    *,
    seq_lens: Any,
    labels: Any = None,
    temperature: Any = None,
    routed_experts: Any = None,
    mm_kwargs: Any = None,
    mm_token_type_ids: Any = None,
    seq_lens_are_pre_shard: Any = False,
) -> Any:
    tick(2)
    if model is not None:
        model(input_ids)
