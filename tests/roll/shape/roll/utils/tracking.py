"""Trackers, of which each strips how a number was reduced from its name."""

from __future__ import annotations

import json
from functools import wraps
from typing import Any

tracker_registry: dict[str, Any] = {}


def strip_at_tag_in_log(func: Any) -> Any:
    @wraps(func)
    def wrapper(self: Any, values: dict, step: int | None = None, **kwargs: Any) -> Any:
        return func(self, {key.rsplit("@", 1)[0]: value for key, value in values.items()}, step, **kwargs)

    return wrapper


class BaseTracker:
    def log(self, values: dict, step: int | None, **kwargs):
        pass


class StdoutTracker(BaseTracker):
    def __init__(self, config: dict, **kwargs):
        self.config = config

    @strip_at_tag_in_log
    def log(self, values: dict, step: int | None, **kwargs):
        print("metrics_tag:", json.dumps({"step": step, "metrics": values}))


def create_tracker(tracker_name: str, config: dict, **kwargs) -> BaseTracker:
    return tracker_registry[tracker_name](config, **kwargs) if tracker_name else BaseTracker()


tracker_registry["stdout"] = StdoutTracker
