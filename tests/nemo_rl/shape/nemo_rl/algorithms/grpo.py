"""GRPO, which is a function."""

from typing import Any

from nemo_rl.algorithms.async_utils.replay_buffer import ReplayBufferImpl
from nemo_rl.algorithms.async_utils.trajectory_collector import AsyncTrajectoryCollector
from nemo_rl.experience.rollouts import run_multi_turn_rollout
from nemo_rl.utils.timer import Timer
from tests.nemo_rl.world import Batch, call, tick

NUMBERS = {"reward": 0.5, "loss": 0.25, "grad_norm": 2.0, "lr": 1e-6, "kl_penalty": 0.125, "approx_entropy": 1.5}


def setup(
    master_config: Any,
    tokenizer: Any,
    dataset: Any,
    val_dataset: Any,
    processor: Any = None,
    policy_factory: Any = None,
) -> Any:
    tick(1)


def refit_policy_generation(
    policy: Any,
    policy_generation: Any,
    colocated_inference: Any,
    _refit_buffer_size_gb: Any = None,
    timer: Any = None,
    kv_scales: Any = None,
) -> None:
    call(policy.rank.stream_weights_via_ipc_zmq)
    tick(1)


def validate(logger: Any, step: int) -> None:
    with Timer().time("total_validation_time"):
        tick(1)
    logger.log_metrics({"accuracy": 0.75}, step, prefix="validation")


def update(policy: Any, timer: Any, loss_fn: Any) -> None:
    with timer.time("policy_and_reference_logprobs"):
        policy.get_logprobs(None, timer=timer)
        policy.get_reference_policy_logprobs(None, timer=timer)
    with timer.time("advantage_calculation"):
        tick(1)
    with timer.time("policy_training"):
        policy.train(None, loss_fn, timer=timer)


def grpo_train(
    policy: Any,
    policy_generation: Any,
    wrapped_dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    task_to_env: Any,
    val_task_to_env: Any,
    logger: Any,
    checkpointer: Any,
    grpo_save_state: Any,
    master_config: Any,
) -> None:
    timer, done, unfilled = Timer(), grpo_save_state["total_steps"], master_config.unfilled
    while done < master_config.grpo["max_num_steps"]:
        with timer.time("total_step_time"):
            with timer.time("prepare_for_generation/total"):
                refit_policy_generation(policy, policy_generation, True, timer=timer)
            with timer.time("generation"):
                _, metrics = run_multi_turn_rollout(policy_generation, Batch(task_name=["math"] * 4), task_to_env)
            if unfilled:
                unfilled -= 1
                continue
            update(policy, timer, loss_fn)
            refit_policy_generation(policy, policy_generation, True)
            validate(logger, done + 1)
            with timer.time("checkpointing"):
                tick(1)
        logger.log_metrics({**NUMBERS, **metrics}, done + 1, prefix="train")
        logger.log_metrics({"generation": 2.0}, done + 1, prefix="timing/train", step_finished=True)
        done += 1


def async_grpo_train(
    policy: Any,
    policy_generation: Any,
    dataloader: Any,
    val_dataloader: Any,
    tokenizer: Any,
    loss_fn: Any,
    task_to_env: Any,
    val_task_to_env: Any,
    logger: Any,
    checkpointer: Any,
    grpo_save_state: Any,
    master_config: Any,
    max_trajectory_age_steps: Any = 1,
    teacher_worker_groups: Any = None,
    alias_to_group_alias: Any = None,
) -> None:
    timer, step, buffer = Timer(), grpo_save_state["current_step"], ReplayBufferImpl()
    collector = AsyncTrajectoryCollector(buffer, task_to_env)

    def collect(generation: int, target: int) -> None:
        for place in range(2):
            collector._run_prompt_group_worker(Batch(task_name=["math"] * 2), generation, target, place)

    collect(step, step)
    while step < master_config.grpo["max_num_steps"]:
        with timer.time("total_step_time"):
            with timer.time("exposed_generation"):
                result = call(buffer.sample, num_prompt_groups=2, current_weight_version=step, max_age_steps=1)
                tick(1)
                if result is None:
                    return
            collect(step, step + 1)
            update(policy, timer, loss_fn)
            with timer.time("weight_sync"):
                refit_policy_generation(policy, policy_generation, False)
        logger.log_metrics({"generation": 2.0}, step + 1, prefix="timing/train", step_finished=True)
        step += 1
