"""Makes rollouts: in slime an actor."""

import asyncio
from typing import Any

from slime.observability import rollout_metrics
from slime.rollout import sglang_rollout
from slime.rollout.filter_hub.base_types import MetricGatherer
from tests.slime import world


async def make(manager: Any, gatherer: Any) -> Any:
    """Make a rollout; the filter drops its first groups."""
    args, made, samples = manager.args, 0, []
    while len(samples) < args.rollout_batch_size:
        group = [world.Sample(manager.group, manager.group)]
        manager.group, made = manager.group + 1, made + 1
        group = await sglang_rollout.generate_and_rm_group(args, group, {}, evaluation=False)
        if made <= args.drop:
            gatherer.on_dynamic_filter_drop(reason="zero_std")
        else:
            samples += group
    return samples


class RolloutManager:
    def __init__(self, args: Any) -> None:
        self.args, self.version, self.group = args, 0, 0

    def use_weights(self) -> None:
        self.version += 1

    def generate(self, rollout_id: Any) -> Any:
        self.args.version = self.version
        samples = asyncio.run(make(self, MetricGatherer()))
        rollout_metrics.log_rollout_data(rollout_id, self.args, samples, None, 1.0)
        return samples

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
