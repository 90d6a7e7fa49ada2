"""Counts groups that are dropped."""

from typing import Any


class MetricGatherer:
    def on_dynamic_filter_drop(self, reason: Any) -> Any:
        pass
