"""What a rank computes."""

from typing import Any

from tests.slime.world import tick


def forward_only(
    f: Any,
    args: Any,
    model: Any,
    data_iterator: Any,
    num_microbatches: Any,
    rollout_id: Any,
    store_prefix: Any = "",
) -> Any:
    tick(2)


def train_one_step(
    args: Any,
    rollout_id: Any,
    step_id: Any,
    data_iterator: Any,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    num_microbatches: Any,
    num_rollouts: Any,
    witness_info: Any,
    attempt: Any,
    ft_test_action_executor: Any = None,
) -> Any:
    tick(3)


def train(
    rollout_id: Any,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    data_iterator: Any,
    num_microbatches: Any,
    num_rollouts: Any,
    witness_info: Any,
    attempt: Any,
    ft_test_action_executor: Any = None,
) -> Any:
    train_one_step(None, rollout_id, 0, data_iterator, model, optimizer, opt_param_scheduler, 1, 2, None, attempt)
