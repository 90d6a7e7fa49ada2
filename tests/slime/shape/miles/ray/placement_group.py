"""Makes the actors."""

from typing import Any

from miles.ray.actor_group import RayTrainGroup
from miles.ray.rollout.rollout_manager import RolloutManager
from tests.slime.world import AwaitedHandle


def create_placement_groups(args: Any) -> Any:
    return {}


def create_rollout_manager(args: Any, pg: Any) -> Any:
    return AwaitedHandle(RolloutManager(args)), None


async def create_training_models(args: Any, pgs: Any, rollout_manager: Any) -> Any:
    return RayTrainGroup(args), None
