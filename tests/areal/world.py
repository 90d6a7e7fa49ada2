"""A controller of AReaL's shape, and its workers: each is a process of its own, and a pipe stands for HTTP.

A worker is forked before anything is recorded. When the scheduler starts it, it gets the environment that a child of
the controller has at that moment, and begins to record. So it knows what a process knows that AReaL starts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import otel_rl

SHAPE = Path(__file__).parent / "shape"
CONTEXT = get_context("fork")
ROLES = "actor/0", "actor/1", "ref/0", "rollout/0"
GUARD = "areal.infra.rpc.guard"
Reward = Callable[[str, int], float]


def length(data: str, number: int) -> float:
    """Give a reward."""
    if data == "broken":
        raise ZeroDivisionError("theirs")
    return float(number) * (data != "equal")


def workflow(reward: Reward = length) -> Any:
    """Make a workflow, as a program has its own: it asks once, and scores the answer."""
    base = import_module("areal.api.workflow_api").RolloutWorkflow
    scored = import_module("areal.api.reward_api").AsyncRewardWrapper(reward)

    class Workflow(base):  # type: ignore[misc, valid-type]
        made = 0

        async def arun_episode(self, engine: Any, data: Any) -> Any:
            """Ask once, and score the answer."""
            self.made += 1
            number = self.made
            answer = await engine.agenerate(SimpleNamespace(input_ids=[1, 2, 3]))
            score = await scored(data, number)
            if data == "none":
                return None
            return {
                "loss_mask": torch.tensor([[0] * 3 + [1] * 2]),
                "attention_mask": torch.ones(1, 5),
                "versions": torch.tensor([[-1] * 3 + answer.output_versions]),
                "rewards": torch.tensor([score]),
            }

    return Workflow()


def config(**changes: Any) -> Any:
    """Make what is read of a configuration of two steps of two prompts with two answers each."""
    optimizer = SimpleNamespace(lr=1e-6, gradient_clipping=1.0)
    return SimpleNamespace(**{
        "experiment_name": "experiment", "trial_name": "trial", "total_train_epochs": 1, "total_train_steps": 2,
        "gconfig": SimpleNamespace(n_samples=2, max_new_tokens=8, temperature=0.9), "actor_ranks": 1,
        "actor": SimpleNamespace(path="/models/Tiny-1B/", kl_ctl=0.1, ppo_n_minibatches=4, optimizer=optimizer),
        "train_dataset": SimpleNamespace(batch_size=2),
        **changes,
    })  # fmt: skip


def train(folder: Path, dataset: list[str], slow: Mapping[str, float] = {}, broken: str = "") -> None:
    """Train in processes of their own.

    Args:
        folder: where it is recorded.
        dataset: its prompts.
        slow: seconds that a forward of a worker takes longer.
        broken: the worker whose second update raises.
    """
    controller = CONTEXT.Process(target=_control, args=(folder, dataset, slow, broken))
    controller.start()
    controller.join()
    assert controller.exitcode == (1 if broken else 0)


def _control(folder: Path, dataset: list[str], slow: Mapping[str, float], broken: str) -> None:
    os.environ.update(OTEL_RL_DIR=str(folder.parent), OTEL_RL_RUN_ID=folder.name, OTEL_RL_SIDECAR="false")
    sys.path.insert(0, str(SHAPE))
    pipes = {name: CONTEXT.Pipe() for name in ROLES}
    workers = [
        CONTEXT.Process(target=_work, args=(pipes[name][1], slow.get(name, 0.0), broken == name)) for name in ROLES
    ]
    for worker in workers:
        worker.start()
    otel_rl.instrument(["areal"])
    scheduler = import_module("areal.infra.scheduler.local").LocalScheduler
    failed = import_module("areal.infra.scheduler.exceptions").EngineCallError

    def start(self: Any, role: str, index: int) -> str:
        pipes[f"{role}/{index}"][0].send((role, index, dict(os.environ)))
        return f"{role}/{index}"

    def send(self: Any, worker_id: str, payload: Any) -> Any:
        pipe = pipes[worker_id][0]
        pipe.send(json.dumps(payload))
        result = pipe.recv()
        if isinstance(result, BaseException):
            raise failed(f"Failed to call method {payload['method']!r} on worker {worker_id!r}: {result}")
        return result

    scheduler.start, scheduler.send = start, send
    steps = len([data for data in dataset if data not in ("broken", "equal", "none")]) // 2
    trainer = import_module("areal.trainer.rl_trainer").PPOTrainer(
        config(total_train_steps=steps, actor_ranks=2), dataset
    )
    trainer.dispatcher = _dispatcher(trainer.scheduler)
    try:
        trainer.train(workflow())
    finally:
        for pipe, _ in pipes.values():
            pipe.send(None)
        for worker in workers:
            worker.join()
        otel_rl.uninstrument()


def _dispatcher(scheduler: Any) -> Any:
    """Make the dispatcher of the controller, whose tasks are calls of a worker."""
    executor = import_module("areal.infra.workflow_executor")
    (worker,) = scheduler.create_workers(SimpleNamespace(role="rollout", replicas=1))

    class Remote(executor.BatchTaskDispatcher):  # type: ignore[misc, name-defined]
        async def execute(self, task_id: int, workflow: Any, data: Any, is_eval: bool) -> Any:
            made = await scheduler.async_call_engine(worker, "submit", worker, task_id, data)
            return made and executor._RolloutResult(task_id, made)

    return Remote(None)


class Rollouts:
    """The engine of a worker that makes rollouts."""

    def __init__(self) -> None:
        self.engine = import_module("areal.infra.remote_inf_engine").RemoteInfEngine()
        self.dispatcher = import_module("areal.infra.workflow_executor").BatchTaskDispatcher(self.engine)
        self.workflow = workflow()

    def submit(self, task_id: int, data: str) -> Any:
        """Make a group."""
        resolved = self.engine._resolve_workflow(self.workflow, None, group_size=2)
        (made,) = self.dispatcher.run([(task_id, resolved, data)], is_eval=False)
        return made and {"rewards": made.trajectory["rewards"].tolist()}


def _work(pipe: Any, slower: float, is_broken: bool) -> None:
    """Be a worker: start with the environment that comes first, and do what is called."""
    role, index, environ = pipe.recv()
    os.environ.clear()
    os.environ.update(environ)
    otel_rl.instrument(["areal"])
    guard, blueprint = import_module(f"{GUARD}.app"), import_module(f"{GUARD}.engine_blueprint")
    guard.configure_state_from_args(guard.GuardState(), Namespace(role=role, worker_index=index))
    engine: Any = Rollouts() if role == "rollout" else import_module("areal.engine.fsdp_engine").FSDPEngine()
    if role != "rollout":
        engine.model.register_forward_pre_hook(lambda *_: time.sleep(0.002 + slower))
    if is_broken:
        updates = iter((True, False))
        engine.model.weight.register_hook(lambda grad: grad if next(updates) else 1 / 0)
    blueprint._engines[f"{role}/{index}"] = engine
    for body in iter(pipe.recv, None):
        try:
            pipe.send(blueprint.call_engine_method(body))
        except Exception as error:  # noqa: BLE001  the controller gets it
            pipe.send(error)
    otel_rl.uninstrument()
