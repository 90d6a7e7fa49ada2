"""PPO."""

from typing import Any

from nemo_rl.experience.rollouts import run_multi_turn_rollout
from nemo_rl.utils.timer import Timer
from tests.nemo_rl.world import Batch, tick


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
    timer, done, config = Timer(), ppo_save_state["total_steps"], master_config.ppo
    while done < config["max_num_steps"]:
        numbers = {"reward": 0.5}
        with timer.time("total_step_time"):
            with timer.time("generation"):
                run_multi_turn_rollout(policy_generation, Batch(task_name=["math"] * 4), None, task_to_env, 8)
            with timer.time("value_inference"):
                value_model.get_values(None)
            with timer.time("policy_and_reference_logprobs"):
                policy.get_logprobs(None, timer=timer)
            with timer.time("advantage_calculation"):
                tick(1)
            for _ in range(config["ppo_epochs"]):
                with timer.time("value_training"):
                    value_model.train(None, value_loss_fn, timer=timer)
                if done >= config["policy_training_start_step"]:
                    with timer.time("policy_training"):
                        policy.train(None, loss_fn, timer=timer)
                    numbers |= {"loss": 0.25, "critic/loss": 0.75}
        logger.log_metrics(numbers, done + 1, prefix="train")
        logger.log_metrics({"generation": 2.0}, done + 1, prefix="timing/train", step_finished=True)
        done += 1
