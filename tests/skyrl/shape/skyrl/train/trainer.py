"""The synchronous trainer."""

from __future__ import annotations

from typing import Any

import torch
from skyrl.backends.skyrl_train.workers.worker import TrainingInputBatch
from skyrl.backends.skyrl_train.workers.worker_dispatch import WorkerDispatch
from skyrl.train.generators.base import prepare_generator_input
from skyrl.train.utils.utils import Timer


class RayPPOTrainer:
    def __init__(
        self,
        cfg: Any,
        tracker: Any,
        tokenizer: Any,
        train_dataset: Any,
        inference_engine_client: Any,
        generator: Any,
        colocate_pg: Any = None,
        eval_dataset: Any = None,
        callbacks: Any = None,
    ) -> None:
        self.cfg, self.tracker, self.train_dataset, self.generator = cfg, tracker, train_dataset, generator
        self.inference_engine_client = inference_engine_client
        self.global_step, self._current_epoch, self.total_training_steps = 0, 0, 2
        self.all_metrics, self.all_timings = {}, {}

    def build_models(self, workers: dict) -> None:
        for worker in workers.values():
            worker.init_model("tiny")
        self.dispatch = WorkerDispatch(workers, self.inference_engine_client)

    async def train(self):
        with Timer("sync_weights"):
            await self.dispatch.save_weights_for_sampler()
        samples = self.cfg.generator.n_samples_per_prompt
        with Timer("eval", self.all_timings):
            await self.generator.generate(prepare_generator_input(["e"], 1, "eval", 0))
        self.tracker.log({"eval/all/avg_score": 0.25}, step=0, commit=True)
        self.global_step = 1
        for prompts in self.train_dataset:
            uids = prompts
            with Timer("step", self.all_timings):
                given = prepare_generator_input(uids, samples, "train", self.global_step)
                with Timer("generate", self.all_timings):
                    output = await self.generate(given)
                if self.cfg.trainer.algorithm.dynamic_sampling.type is not None:
                    output, uids, keep_sampling = self.handle_dynamic_sampling(output, uids)
                    if keep_sampling:
                        continue
                await self.inference_engine_client.sleep()
                with Timer("convert_to_training_input", self.all_timings):
                    batch = self.convert_to_training_input(output, [one.instance_id for one in given["trajectory_ids"]])
                batch = self.prepare_batch(batch)
                with Timer("train_critic_and_policy", self.all_timings):
                    self.train_critic_and_policy(batch)
                with Timer("save_checkpoints", self.all_timings):
                    self.dispatch.workers["policy"].save_checkpoint("folder")
                with Timer("sync_weights", self.all_timings):
                    await self.dispatch.save_weights_for_sampler()
            self.tracker.log(self.all_metrics, step=self.global_step, commit=True)
            self.global_step += 1

    async def generate(self, input_batch: dict) -> dict:
        output = await self.generator.generate(input_batch)
        self.all_metrics.update(output["rollout_metrics"])
        return output

    def handle_dynamic_sampling(self, generator_output: dict, uids: list[str]) -> tuple[dict, list[str], bool]:
        return generator_output, uids, "equal" in uids

    def convert_to_training_input(self, generator_output: dict, uids: list[str]) -> Any:
        width = max(map(len, generator_output["response_ids"]))

        def padded(rows: list) -> Any:
            return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])

        mask, rewards = padded(generator_output["loss_masks"]), padded(generator_output["rewards"])
        response = padded([[1] * len(row) for row in generator_output["response_ids"]])
        whole = torch.cat([torch.ones(len(mask), 3), response], dim=1)
        self.all_metrics["reward/avg_raw_reward"] = float(rewards.sum(1).mean())
        tensors = {
            "sequences": whole.clone(), "attention_mask": whole, "response_mask": response,
            "loss_mask": mask, "rewards": rewards, "values": mask,
        }  # fmt: skip
        return TrainingInputBatch(tensors, {"uids": uids, "pad_size": 0})

    def prepare_batch(self, batch: Any) -> Any:
        with Timer("fwd_logprobs_values_reward", self.all_timings):
            for model in ("critic", "ref", "policy"):
                self.dispatch.forward(model, batch)
        with Timer("compute_advantages_and_returns", self.all_timings):
            batch = self.compute_advantages_and_returns(batch)
            batch.pop("rewards")
            batch.metadata.pop("uids")
        return batch

    def compute_advantages_and_returns(self, data: Any) -> Any:
        data["advantages"] = data["rewards"].sum(1, keepdim=True) * data["response_mask"]
        return data

    def train_critic_and_policy(self, data: Any) -> None:
        for model, timer in (("critic", "critic_train"), ("policy", "policy_train")):
            with Timer(timer, self.all_timings):
                self.dispatch.workers[model].forward_backward(data)
                self.all_metrics[f"{model}/grad_norm"] = self.dispatch.workers[model].optim_step()
