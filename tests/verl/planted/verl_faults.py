"""One fault in a training of verl, which the variable FAULT names. Every process of verl imports this module.

It is on no package's path: ``tests`` is a package of verl's, too. A fault begins in the third step, so that a reader
has something to compare it with; a stall in the step that is said.
"""

import asyncio
import functools
import math
import os
import re
import signal
import subprocess
import time
import timeit
from types import SimpleNamespace

import ray
import wrapt

FIRST_STEP = 3
CALLS_A_STEP = 8
"""Trajectories of a step of ``examples/verl_cpu``."""
PROMPTS_A_STEP = 4
ONE_SERVER = "cpu_server_0", "cpu_server_2"
"""One of the two; the only one of the trainer ``separate_async``."""


def wrapping(module, owner, name):
    """Register a replacement of a method, made once its module is imported."""

    def register(make):
        def patch(found):
            kind = getattr(found, owner)
            kind = getattr(kind, "__ray_metadata__", SimpleNamespace(modified_class=kind)).modified_class
            original = getattr(kind, name)
            setattr(kind, name, functools.wraps(original)(make(original)))

        wrapt.register_post_import_hook(patch, module)

    return register


FSDP = "verl.workers.engine.fsdp.transformer_impl"
WORKERS = "verl.workers.engine_workers"
REWARD = "verl.experimental.reward_loop.reward_loop"


def slow_rank():
    """Let rank 1 take 30 ms longer for each micro-batch that it trains."""

    @wrapping(FSDP, "FSDPEngineWithLMHead", "forward_step")
    def make(original):
        def forward_step(self, micro_batch, loss_function, forward_only):
            if os.environ.get("RANK") == "1" and not forward_only:
                time.sleep(0.03)
            return original(self, micro_batch, loss_function, forward_only)

        return forward_step


def nan_loss():
    """Make the loss of rank 1 NaN, once."""
    calls = iter(range(10_000))

    @wrapping(FSDP, "FSDPEngineWithLMHead", "forward_step")
    def make(original):
        def forward_step(self, micro_batch, loss_function, forward_only):
            loss, output = original(self, micro_batch, loss_function, forward_only)
            if os.environ.get("RANK") == "1" and not forward_only and next(calls) == 2 * (FIRST_STEP - 1):
                loss = loss * float("nan")
                output["loss"] = float("nan")
            return loss, output

        return forward_step


def _reward(then):
    calls = iter(range(10_000))

    @wrapping(REWARD, "RewardLoopWorker", "__init__")
    def make(original):
        def __init__(self, *args, **kwargs):
            original(self, *args, **kwargs)
            score = self.reward_manager.run_single

            async def run_single(data):
                if next(calls) == CALLS_A_STEP * (FIRST_STEP - 1) + 1:
                    await then()
                return await score(data)

            self.reward_manager.run_single = run_single

        return __init__


def reward_raises():
    """Let the reward of one trajectory fail."""

    async def then():
        raise ValueError("no reward for this answer")

    _reward(then)


def slow_reward():
    """Let the reward of every trajectory take 0.4 s longer from the third step on."""

    def wait_for_judge():
        time.sleep(0.4)

    _score(FIRST_STEP, wait_for_judge, math.inf)


def late_samples():
    """Let each prompt wait for 1.5 s after its last trajectory, before the driver learns that it is finished."""

    def patch(module):
        settle = module._settle_session_tasks

        @functools.wraps(settle)
        async def settle_late(tasks):
            errors = await settle(tasks)
            await asyncio.sleep(1.5)
            return errors

        module._settle_session_tasks = settle_late

    wrapt.register_post_import_hook(patch, "verl.trainer.ppo.v1.agent_loop_tq")


def reward_hangs():
    """Let the reward of one trajectory take 20 s."""
    _reward(functools.partial(asyncio.sleep, 20))


def _first_answers(then, number=1):
    """Change the first answers that each server gives for the step."""

    @wrapping("verl_cpu.engine", "Server", "generate")
    def make(original):
        async def generate(self, *args, **kwargs):
            answer = await original(self, *args, **kwargs)
            if self.global_steps != FIRST_STEP - 1 or getattr(self, "changed", 0) >= number:
                return answer
            self.changed = getattr(self, "changed", 0) + 1
            return await then(answer)

        return generate


def long_trajectory():
    """Let one answer of each server take 5 s longer than the others."""

    async def then(answer):
        await asyncio.sleep(5)
        return answer

    _first_answers(then)


def aborted_rollout():
    """Let each server give up two answers after their first token."""

    async def then(answer):
        answer.token_ids, answer.stop_reason = answer.token_ids[:1], "aborted"
        answer.log_probs = answer.log_probs and answer.log_probs[:1]
        return answer

    _first_answers(then, 2)


def shifted_mask():
    """Shift the response mask of one sample by one token, between its generation and its training."""
    calls = iter(range(10_000))

    @wrapping("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "_balance_batch")
    def make(original):
        def balance(self, batch, *args, **kwargs):
            if next(calls) == FIRST_STEP - 1:
                shift_one(batch)
            return original(self, batch, *args, **kwargs)

        return balance


def shift_one(batch):
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    key = sorted(batch.keys)[0]
    fields = ["response_mask", "loss_mask"]
    data = tq.kv_batch_get(keys=[key], partition_id=batch.partition_id, select_fields=fields)
    moved = {name: [torch.cat([row.new_zeros(1), row[:-1]]) for row in data[name].unbind()] for name in fields}
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in moved.items()}
    tq.kv_batch_put(keys=[key], partition_id=batch.partition_id, fields=TensorDict(nested, batch_size=1))


def twice_the_same_group():
    """Give two prompts of a step the same id."""

    @wrapping("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "_fetch_one_gen_batch")
    def make(original):
        def fetch(self):
            batch = original(self)
            if self.global_steps >= FIRST_STEP:
                batch["uid"][1] = batch["uid"][0]
            return batch

        return fetch


def growing_sync():
    """Let the sync of weights take 60 ms longer in each step than in the one before."""

    @wrapping("verl_cpu.engine", "Adapter", "update_weights")
    def make(original):
        async def update_weights(self, *args, global_steps=None, **kwargs):
            await asyncio.sleep(0.06 * (global_steps or 0))
            return await original(self, *args, global_steps=global_steps, **kwargs)

        return update_weights


# --- stalls: they begin in a step, and last some seconds --------------------------------------------------------------


def _score(step, then, times=1):
    """Do something in the user's reward function, before the second answer that it scores in a step, and later ones."""
    calls = iter(range(10_000))
    first = CALLS_A_STEP * (step - 1) + 1

    def patch(module):
        score = module.compute_score

        @functools.wraps(score)
        def compute_score(*args, **kwargs):
            if 0 <= next(calls) - first < times:
                then()
            return score(*args, **kwargs)

        module.compute_score = compute_score

    wrapt.register_post_import_hook(patch, "verl_cpu.reward")


def reward_sleeps(lasts_s=40.0, step=6):
    """Let the reward function sleep in one call; its process goes on."""

    def wait_for_judge():
        time.sleep(lasts_s)

    _score(step, wait_for_judge)


def reward_backtracks(lasts_s=40.0, step=6):
    """Let a regular expression backtrack in the reward function: no other thread of its process runs meanwhile."""

    def parse_answer(parts):
        re.findall(r"(?:a+)+$", ("a" * 20 + "b") * parts)

    def parse_long_answer():
        parse_answer(round(lasts_s / min(timeit.repeat(lambda: parse_answer(1), number=1))))

    _score(step, parse_long_answer)


def dead_reward(step=6):
    """Kill the worker that computes rewards in the middle of a call."""
    _score(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def _before_training(step, then):
    """Do something in rank 1 before it trains in a step."""
    calls = iter(range(10_000))

    @wrapping(WORKERS, "ActorRolloutRefWorker", "update_actor")
    def make(original):
        def update_actor(self, *args, **kwargs):
            if os.environ.get("RANK") == "1" and next(calls) == step - 1:
                then()
            return original(self, *args, **kwargs)

        return update_actor


def stopped_rank(lasts_s=40.0, step=6):
    """Stop rank 1 before it trains; another process lets it go on."""

    def stop_this_process():
        subprocess.Popen(["sh", "-c", f"sleep {lasts_s}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)

    _before_training(step, stop_this_process)


def late_rank(lasts_s=40.0, step=6):
    """Let rank 1 sleep before the first collective of its training."""

    def sleep_before_collective():
        time.sleep(lasts_s)

    _before_training(step, sleep_before_collective)


def blocked_data(lasts_s=40.0, step=6):
    """Let the worker of the data loader wait in the first prompt of a step; ``data.dataloader_num_workers=1``."""
    calls = iter(range(10_000))

    def fetch_item():
        time.sleep(lasts_s)

    @wrapping("verl.utils.dataset.rl_dataset", "RLHFDataset", "__getitem__")
    def make(original):
        def __getitem__(self, item):
            import torch

            if torch.utils.data.get_worker_info() is not None and next(calls) == PROMPTS_A_STEP * (step - 1):
                fetch_item()
            return original(self, item)

        return __getitem__


def endless_request(lasts_s=40.0, step=6):
    """Let one request to the first server take long."""

    async def wait_for_engine():
        await asyncio.sleep(lasts_s)

    @wrapping("verl_cpu.engine", "Server", "generate")
    def make(original):
        async def generate(self, *args, **kwargs):
            name = ray.get_runtime_context().get_actor_name()
            if name in ONE_SERVER and (self.global_steps or 0) >= step - 1 and not hasattr(self, "has_waited"):
                self.has_waited = True
                await wait_for_engine()
            return await original(self, *args, **kwargs)

        return generate


def dead_agent_loop(step=6):
    """Kill the worker that holds trajectories."""

    @wrapping("verl.experimental.agent_loop.agent_loop", "AgentLoopWorker", "_run_agent_loop")
    def make(original):
        async def run(self, sampling_params, trajectory, *args, **kwargs):
            if trajectory["step"] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return await original(self, sampling_params, trajectory, *args, **kwargs)

        return run


def blocked_sync(lasts_s=40.0, step=6):
    """Let the transport of the weights to the first server wait."""

    async def wait_for_transport():
        await asyncio.sleep(lasts_s)

    @wrapping("verl_cpu.engine", "Adapter", "update_weights")
    def make(original):
        async def update_weights(self, *args, global_steps=None, **kwargs):
            if global_steps == step and self.is_first and self.replica_rank == 0:
                await wait_for_transport()
            return await original(self, *args, global_steps=global_steps, **kwargs)

        return update_weights


def blocked_checkpoint(lasts_s=40.0, step=6):
    """Let the disk of rank 0 block while a checkpoint is written: a pipe that nobody reads for a while."""

    def write_to_disk(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkfifo(path)
        reader = subprocess.Popen(["sh", "-c", f"sleep {lasts_s}; cat '{path}'"])
        with open(path, "w") as file:
            file.write("x")
        reader.wait()
        os.unlink(path)

    @wrapping("verl.utils.checkpoint.fsdp_checkpoint_manager", "FSDPCheckpointManager", "save_checkpoint")
    def make(original):
        def save_checkpoint(self, local_path, *args, **kwargs):
            if kwargs.get("global_step") == step and self.rank == 0:
                write_to_disk(f"{local_path}.pipe")
            return original(self, local_path, *args, **kwargs)

        return save_checkpoint


def plant(faults):
    """Plant ``fault``, ``fault:seconds:step`` or several of them, with a comma between them."""
    for fault in filter(None, faults.split(",")):
        name, *how = fault.split(":")
        globals()[name](*map(float, how))


plant(os.environ.get("FAULT", ""))
