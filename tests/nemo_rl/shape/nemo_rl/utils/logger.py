"""Where all numbers go."""

from typing import Any


class Logger:
    def log_metrics(
        self, metrics: Any, step: Any, prefix: Any = "", step_metric: Any = None, step_finished: Any = False
    ) -> None:
        pass
