"""Where all numbers go."""

from typing import Any


def log(args: Any, metrics: Any, step_key: Any) -> Any:
    pass


def finish_tracking() -> Any:
    pass
