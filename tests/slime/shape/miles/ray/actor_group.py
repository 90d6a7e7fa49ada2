"""The ranks of a model, as the driver calls them."""

from typing import Any

from miles.backends.megatron_utils.actor import MegatronTrainRayActor
from tests.slime.world import AwaitedHandle, tick


class RayTrainGroup:
    role = "actor"

    def __init__(self, args: Any) -> None:
        rank = MegatronTrainRayActor()
        rank.init(args, "actor", indep_dp_info=None)
        self.rank = AwaitedHandle(rank)

    async def train(self, rollout_id: Any, rollout_data_pack: Any, external_data: Any = None) -> Any:
        await self.rank.train.remote(rollout_id, rollout_data_pack)

    async def save_model(self, rollout_id: Any, force_sync: Any = False) -> Any:
        tick(1)

    async def update_weights(self, rollout_id: Any = None) -> Any:
        tick(1)

    async def onload(self) -> Any:
        pass

    async def offload(self) -> Any:
        pass

    async def clear_memory(self) -> Any:
        pass
