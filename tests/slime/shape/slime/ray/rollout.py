"""Makes rollouts: in slime an actor."""

import asyncio
from typing import Any

from slime.observability import rollout_metrics
from slime.rollout import sglang_rollout
from slime.rollout.filter_hub.base_types import MetricGatherer
from tests.slime import world


class RolloutManager:
    def __init__(self, args: Any) -> None:
        self.args, self.version = args, 0

    def use_weights(self) -> None:
        self.version += 1

    def generate(self, rollout_id: Any) -> Any:
        self.args.version = self.version
        count = self.args.rollout_batch_size
        groups = [[world.Sample(rollout_id * count + group, rollout_id * count + group)] for group in range(count)]
        samples = asyncio.run(self.make(groups))
        for _ in range(self.args.drop):
            MetricGatherer().on_dynamic_filter_drop("zero_std")
        rollout_metrics.log_rollout_data(rollout_id, self.args, samples, None, 1.0)
        return samples

    async def make(self, groups: Any) -> Any:
        made = [await sglang_rollout.generate_and_rm_group(self.args, group, {}, evaluation=False) for group in groups]
        return [sample for group in made for sample in group]

    def eval(self, rollout_id: Any) -> Any:
        sample = world.Sample(None, 0)
        asyncio.run(sglang_rollout.generate_and_rm(self.args, sample, sampling_params={}, evaluation=True))

    def offload(self) -> Any:
        pass

    def onload(self, tags: Any = None) -> Any:
        pass

    def onload_weights(self) -> Any:
        pass

    def onload_kv(self) -> Any:
        pass
