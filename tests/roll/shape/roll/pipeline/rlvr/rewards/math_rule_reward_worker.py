"""A rule of rewards: it has no base in common with others but ``Worker``."""

from __future__ import annotations

import numpy as np
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto


class MathRuleRewardWorker(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        super().initialize(pipeline_config)

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data: DataProto):
        if self.pipeline_config.reward_raises:
            raise ValueError("theirs")
        return DataProto({"scores": np.ones(data.batch.batch_size[0])})
