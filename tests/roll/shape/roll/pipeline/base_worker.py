"""Workers with a model: they train, score or serve."""

from __future__ import annotations

import asyncio

from codetiming import Timer
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from roll.utils.context_managers import state_offload_manger


class ModelWorker(Worker):
    def _work(self, data, name, work):
        metrics: dict = {}
        is_offload = data.meta_info.get("is_offload_states", True)
        infix = f"{self.cluster_name}/{name}"
        with state_offload_manger(self.strategy, metrics, metric_infix=infix, is_offload_states=is_offload):
            return work(), metrics

    def _train(self, data):
        backward = self.worker_config.training_args.gradient_accumulation_steps
        backward *= self.worker_config.training_args.per_device_train_batch_size
        data = data.to("cpu")
        for part in data.chunk(data.batch.batch_size[0] // backward):
            metrics = self.strategy.train_step(batch=part, loss_func=None)
        return metrics

    def _save(self, global_step):
        with Timer("do_checkpoint", logger=None) as total_timer:
            pass
        return DataProto(meta_info={"metrics": {f"time/{self.cluster_name}/do_checkpoint/total": total_timer.last}})


class ActorWorker(ModelWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        from roll.distributed.strategy.fsdp2_strategy import FSDP2TrainStrategy

        super().initialize(pipeline_config)
        self.strategy = FSDP2TrainStrategy(self)

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True, prefetch=False, to_remote=False)
    def train_step(self, data: DataProto):
        trained, metrics = self._work(data, "train_step", lambda: self._train(data))
        return DataProto(meta_info={"metrics": {**metrics, **trained, "actor/lr": 0.1}})

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True, prefetch=False, to_remote=True)
    def compute_log_probs(self, data: DataProto):
        results, metrics = self._work(data, "compute_log_probs", lambda: self.strategy.forward_step(data.to("cpu")))
        return DataProto({"log_probs": results}, meta_info={"metrics": metrics})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def do_checkpoint(self, global_step, is_last_step=None):
        return self._save(global_step)


class CriticWorker(ModelWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        from roll.distributed.strategy.fsdp2_strategy import FSDP2TrainStrategy

        super().initialize(pipeline_config)
        self.strategy = FSDP2TrainStrategy(self)

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True, to_remote=True)
    def compute_values(self, data: DataProto):
        results, metrics = self._work(data, "compute_values", lambda: self.strategy.forward_step(data.to("cpu")))
        return DataProto({"values": results}, meta_info={"metrics": metrics})

    @register(dispatch_mode=Dispatch.DP_MP_DISPATCH_FIRST, trace=True)
    def train_step(self, data: DataProto):
        _, metrics = self._work(data, "train_step", lambda: self._train(data))
        return DataProto(meta_info={"metrics": {**metrics, "critic/loss": 0.25}})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def do_checkpoint(self, global_step, is_last_step=None):
        return self._save(global_step)


class Engine:
    """Answers with two tokens, the second of which it gives only when nobody aborts it before."""

    def __init__(self):
        self.held: dict[str, asyncio.Event] = {}

    async def load_states(self, *args, **kwargs):
        pass

    async def generate_request(self, payload):
        rid = payload["rid"]
        if payload["sampling_params"].get("hold") and len(payload["input_ids"]) == 3:
            self.held[rid] = asyncio.Event()
            await self.held[rid].wait()
            return {"rid": rid, "output_token_ids": [[7]], "finish_reasons": ["abort"]}
        await asyncio.sleep(0.002)
        return {"rid": rid, "output_token_ids": [[8, 9]], "finish_reasons": ["stop"]}

    async def abort_requests(self, request_ids):
        for event in [self.held[rid] for rid in request_ids if rid in self.held]:
            event.set()


class InferWorker(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def initialize(self, pipeline_config):
        super().initialize(pipeline_config)
        self.strategy = Engine()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_states(self, *args, **kwargs):
        await self.strategy.load_states(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def offload_states(self, *args, **kwargs):
        await self.strategy.load_states(*args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_states_partial(self, target_dp_ranks: list[int]):
        await self.strategy.load_states()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def offload_states_partial(self, target_dp_ranks: list[int]):
        await self.strategy.load_states()

    async def generate_request(self, payload: dict) -> dict:
        return await self.strategy.generate_request(payload=payload)

    async def abort_requests(self, request_ids):
        await self.strategy.abort_requests(request_ids)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def process_weights_after_loading(self):
        pass
