"""The ranks of a model, as the driver calls them."""

from typing import Any

from slime.backends.megatron_utils.actor import MegatronTrainRayActor
from tests.slime import world


class RayTrainGroup:
    def __init__(self, args: Any, rollout_manager: Any) -> None:
        self.args, self.manager = args, rollout_manager
        self.ranks = [world.actor(MegatronTrainRayActor, rank) for rank in range(args.ranks)]
        world.get([one.init.remote(args, "actor") for one in self.ranks])

    def async_train(self, rollout_id: Any, rollout_data_ref: Any, external_data: Any = None) -> Any:
        return [one.train.remote(rollout_id, rollout_data_ref, external_data) for one in self.ranks]

    def save_model(self, rollout_id: Any, force_sync: Any = False) -> Any:
        return world.get([one.save_model.remote(rollout_id) for one in self.ranks])

    def update_weights(self) -> Any:
        world.get(self.manager.use_weights.remote())
        return world.get([one.update_weights.remote() for one in self.ranks])

    def onload(self) -> Any:
        pass

    def offload(self) -> Any:
        pass

    def clear_memory(self) -> Any:
        pass
