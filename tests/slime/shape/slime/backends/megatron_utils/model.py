"""What a rank computes."""

from typing import Any

from slime.observability import logging_utils
from tests.slime.world import tick


def forward_only(
    f: Any,
    args: Any,
    model: Any,
    data_iterator: Any,
    num_microbatches: Any,
    store_prefix: Any = "",
    use_rollout_top_p_replay: Any = False,
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
    step_global_batch_size: Any,
    microbatch_pbar: Any = None,
) -> Any:
    tick(3)


def train(
    rollout_id: Any,
    model: Any,
    optimizer: Any,
    opt_param_scheduler: Any,
    data_iterator: Any,
    num_microbatches: Any,
    global_batch_sizes: Any,
) -> Any:
    args = model[0].args
    for step, count in enumerate(num_microbatches):
        train_one_step(args, rollout_id, step, data_iterator, model, optimizer, opt_param_scheduler, count, 2)
        numbers = {"train/loss": 0.5, "train/entropy_loss": 1.5, "train/ppo_kl": 0.25, "train/pg_loss": 0.125}
        logging_utils.log(args, numbers | {"train/lr-pg_0": 1e-6, "train/step": rollout_id}, step_key="train/step")
