"""Timers, of miles' own making."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


class Timer:
    @contextmanager
    def context(self, name: Any) -> Iterator[None]:
        yield


def timer(name_or_func: Any) -> Any:
    if isinstance(name_or_func, str):
        return Timer().context(name_or_func)

    @wraps(name_or_func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with Timer().context(name_or_func.__name__):
            return name_or_func(*args, **kwargs)

    return wrapper
