"""How the samples of a prompt are made; users may write their own."""

from __future__ import annotations

import asyncio

import numpy as np
from roll.distributed.scheduler.generate_scheduler import RolloutContext
from roll.distributed.scheduler.protocol import DataProto
from roll.utils.telemetry import get_tracer


class UserDefinedRolloutLoop:
    def __init__(self):
        pass

    async def process_new_prompt(self, context: RolloutContext) -> DataProto | list[DataProto] | None:
        requests, domain = context.get_request_data(meta_info=context.meta_info)
        async with context.do_generate_and_reward(max_concurrency=len(requests)):
            calls = [self._generate_and_reward(context=context, req=req, domain=domain) for req in requests]
            found = await asyncio.gather(*calls)
            if not all(one is not None for one in found):
                return None
        responses = [response for one in found for response in one]
        if not context.is_val and context.prompt_id in context.pipeline_config.filtered:
            return None
        return responses

    async def _generate_and_reward(self, context: RolloutContext, req: DataProto, domain: str):
        with get_tracer("scheduler").start_as_current_span("generate_and_reward"):
            while True:
                data = await context.generate(req=req, domain=domain)
                if data is None:
                    return None
                answer = data.meta_info.pop("output_token_ids")
                if "abort" not in data.meta_info.pop("finish_reasons"):
                    break
                if not req.meta_info.get("collect_unfinished", False):
                    return None
                req = DataProto({"input_ids": np.concatenate([req.batch["input_ids"], answer], axis=1)},
                                req.non_tensor_batch, req.meta_info)  # fmt: skip
            ids = np.concatenate([req.batch["input_ids"], answer], axis=1)
            ids = np.pad(ids, ((0, 0), (0, 6 - ids.shape[1])))[:, :6]
            mask = (ids > 0).astype(np.int64)
            written = mask * (np.arange(6) >= 3)
            tensors = {"input_ids": ids[:, :4], "attention_mask": mask, "response_mask": written}
            tensors["responses"] = ids[:, 3:]
            req = DataProto(tensors, req.non_tensor_batch, req.meta_info)
            rewards = await context.compute_rewards(req=req, domain=domain)
            return [req.union(rewards)]
