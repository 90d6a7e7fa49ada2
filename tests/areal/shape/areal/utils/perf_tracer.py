"""The tracer, which is off."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any


def trace_scope(
    name: str, *, category: Any = None, enable_profiler: bool = False, profiler_args: Any = None, args: Any = None
):
    return nullcontext()


def trace_session_event(method: str, session_id: Any = None, task_id: Any = None, **payload: Any): ...


def trace_perf(name: str):
    def decorator(func: Any) -> Any:
        @functools.wraps(func)
        def sync_wrapper(*args: Any, **kwargs: Any) -> Any:
            with trace_scope(name):
                return func(*args, **kwargs)

        return sync_wrapper

    return decorator
