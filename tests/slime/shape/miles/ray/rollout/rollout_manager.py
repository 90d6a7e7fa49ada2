"""Makes rollouts: in miles an actor."""

from typing import Any

from miles.ray.rollout import metrics
from miles.rollout.inference_rollout import inference_rollout_common
from tests.slime import world


class State:
    def __init__(self, args: Any) -> None:
        self.args = args


class RolloutManager:
    def __init__(self, args: Any) -> None:
        self.args = args

    async def generate(self, rollout_id: Any) -> Any:
        state, group = State(self.args), [world.Sample(rollout_id, rollout_id)]
        samples = await inference_rollout_common.generate_and_rm_group(state, group, {}, evaluation=False)
        metrics.log_rollout_data(rollout_id, self.args, samples, None, 1.0)
        return samples

    async def eval(
        self, rollout_id: Any, hf_dir: Any = None, export_time_seconds: Any = None, require_marker: Any = True
    ) -> Any:
        world.tick(1)

    async def offload(self, tags: Any = None) -> Any:
        pass

    async def onload(self, tags: Any = None) -> Any:
        pass

    async def onload_weights(self) -> Any:
        pass

    async def onload_kv(self) -> Any:
        pass
