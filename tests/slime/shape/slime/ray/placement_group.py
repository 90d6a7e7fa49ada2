"""Makes the actors."""

from typing import Any

from slime.ray.actor_group import RayTrainGroup
from slime.ray.rollout import RolloutManager
from tests.slime import world


def create_placement_groups(args: Any) -> Any:
    return {}


def create_rollout_manager(args: Any, pg: Any) -> Any:
    return world.actor(RolloutManager, args), None


def create_training_models(args: Any, pgs: Any, rollout_manager: Any, actor_cls: Any = None) -> Any:
    return RayTrainGroup(args, rollout_manager), None
