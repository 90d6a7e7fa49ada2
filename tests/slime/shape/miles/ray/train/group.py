"""The ranks of a model that tolerate faults."""

from typing import Any

from tests.slime.world import tick


class RayTrainGroup:
    async def train(self, rollout_id: Any, rollout_data_pack: Any) -> Any:
        tick(1)

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
