"""Numbers of a rollout."""

from typing import Any

from miles.utils.tracking_utils import tracking


def log_rollout_data(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> Any:
    numbers = {"rollout/response_len/mean": 2.0, "train/entropy_loss": 0.0, "rollout/step": rollout_id}
    tracking.log(args, numbers, step_key="rollout/step")
