"""PPO."""

from typing import Any


def setup(master_config: Any, tokenizer: Any, dataset: Any, val_dataset: Any, processor: Any = None) -> Any:
    pass


def ppo_train(
    policy: Any,
    policy_generation: Any,
    value_model: Any,
    dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    value_loss_fn: Any,
    task_to_env: Any,
    val_task_to_env: Any,
    logger: Any,
    checkpointer: Any,
    ppo_save_state: Any,
    master_config: Any,
) -> None:
    pass
