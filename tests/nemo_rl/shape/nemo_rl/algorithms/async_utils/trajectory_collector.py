"""Makes groups while others are trained."""

from typing import Any

from nemo_rl.experience.rollouts import run_async_multi_turn_rollout
from tests.nemo_rl.world import call


class AsyncTrajectoryCollector:
    def __init__(self, buffer: Any, task_to_env: Any) -> None:
        self.buffer, self.task_to_env = buffer, task_to_env

    def _run_prompt_group_worker(
        self, repeated_batch: Any, generation_weight_version: Any, target_weight_version: Any, prompt_idx: Any
    ) -> None:
        try:
            batch, metrics = run_async_multi_turn_rollout(None, repeated_batch, None, self.task_to_env, 8)
            group = {"batch": batch, "rollout_metrics": metrics}
            call(self.buffer.add, group, generation_weight_version, target_weight_version)
        except Exception as error:  # noqa: BLE001 as the real one
            print(error)
