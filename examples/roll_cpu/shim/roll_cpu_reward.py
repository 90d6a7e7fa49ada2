"""A reward of a user: how many of the answer's tokens are below 128. A random model gets some of it, and learns it."""

import torch
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto


class LetterRewardWorker(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        pass

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data: DataProto):
        responses = data.batch["responses"]
        mask = data.batch["response_mask"][:, -responses.shape[1] :].bool()
        scores = ((responses < 128) & mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return DataProto.from_dict(
            tensors={
                "token_level_rewards": torch.zeros_like(responses, dtype=torch.float16),
                "response_level_rewards": scores.to(torch.float16),
                "scores": scores.to(torch.float16),
            }
        )
