"""GRPO, which is a function."""

from typing import Any

from nemo_rl.algorithms.async_utils.replay_buffer import ReplayBufferImpl
from nemo_rl.algorithms.async_utils.trajectory_collector import AsyncTrajectoryCollector
from nemo_rl.experience.rollouts import run_async_multi_turn_rollout, run_multi_turn_rollout
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


def roll_out(policy_generation: Any, tasks: list[str], task_to_env: Any, master_config: Any) -> Any:
    function = run_async_multi_turn_rollout if master_config.async_rollouts else run_multi_turn_rollout
    return function(policy_generation, Batch(task_name=tasks), None, task_to_env, 8)


def dynamic_sampling(
    repeated_batch: Any,
    std: Any,
    baseline: Any,
    dynamic_sampling_num_gen_batches: Any,
    master_config: Any,
    timer: Any,
    batch_cache: Any = None,
) -> Any:
    if not master_config.grpo["use_dynamic_sampling"]:
        return repeated_batch, True, batch_cache, {}
    with timer.time("dynamic_sampling"):
        needed = len(repeated_batch["task_name"])
        kept = [task for task, spread in zip(repeated_batch["task_name"], std, strict=True) if spread]
        if kept:
            batch_cache = Batch(task_name=[*(batch_cache or Batch(task_name=[]))["task_name"], *kept])
        filled = Batch(task_name=kept) if batch_cache is None else batch_cache
        if filled.size < needed:
            return filled, False, batch_cache, {}
        left = {"dynamic_sampling_num_discarded_valid_samples": filled.size - needed}
        return Batch(task_name=filled["task_name"][:needed]), True, batch_cache, left


def validate(logger: Any, step: int, policy_generation: Any, master_config: Any) -> None:
    with Timer().time("total_validation_time"):
        tick(1)
        roll_out(policy_generation, ["math"], "", master_config)
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
    timer, done, spreads, cache, batches = Timer(), grpo_save_state["total_steps"], master_config.spreads, None, 0
    while done < master_config.grpo["max_num_steps"]:
        with timer.time("total_step_time"):
            with timer.time("prepare_for_generation/total"):
                refit_policy_generation(policy, policy_generation, True, timer=timer)
            with timer.time("generation"):
                batch, metrics = roll_out(policy_generation, ["math"] * 4, task_to_env, master_config)
            batches += 1
            with timer.time("reward_calculation"):
                spread = [spreads.pop(0) if spreads else 1, 1]
                tick(1)
                std = [one for one in spread for _ in range(2)]
                batch, is_full, cache, _ = dynamic_sampling(batch, std, None, batches, master_config, timer, cache)
                if not is_full:
                    continue
            cache, batches = None, 0
            update(policy, timer, loss_fn)
            refit_policy_generation(policy, policy_generation, True)
            validate(logger, done + 1, policy_generation, master_config)
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

    def collect(generation: int, target: int, only: int = 2) -> None:
        for place in range(only):
            collector._run_prompt_group_worker(Batch(task_name=["math"] * 2), generation, target, place)

    try:
        refit_policy_generation(policy, policy_generation, False)
    except Exception as error:  # noqa: BLE001 as the real one
        print(error)
        return
    if master_config.restored:
        buffer.kept += [(step, {"batch": Batch(task_name=["math"] * 2), "rollout_metrics": {}}) for _ in range(2)]
    else:
        collect(step, step)
    try:
        while step < master_config.grpo["max_num_steps"]:
            with timer.time("total_step_time"):
                with timer.time("exposed_generation"):
                    result = call(buffer.sample, num_prompt_groups=2, current_weight_version=step, max_age_steps=1)
                    tick(1)
                    if result is None:  # the real one waits, and samples again
                        collect(step, step, only=1)
                        continue
                collect(step, step + 1)
                update(policy, timer, loss_fn)
                with timer.time("weight_sync"):
                    refit_policy_generation(policy, policy_generation, False)
            logger.log_metrics({**NUMBERS}, step + 1, prefix="train")
            logger.log_metrics({"generation": 2.0}, step + 1, prefix="timing/train", step_finished=True)
            step += 1
    except Exception as error:  # noqa: BLE001 as the real one
        print(error)
