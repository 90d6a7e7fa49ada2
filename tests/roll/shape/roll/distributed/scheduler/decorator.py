"""Methods of workers that a cluster binds, and the calls that it binds them to."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from functools import wraps
from typing import Any

import ray
from roll.distributed.scheduler.protocol import DataProto
from roll.utils.telemetry import attach_trace_context, get_tracer, inject_trace_context

BIND_WORKER_METHOD_FLAG = "BIND_WORKER_METHOD_FLAG"


class Dispatch(Enum):
    ONE_TO_ALL = auto()
    DP_MP_COMPUTE = auto()
    DP_MP_DISPATCH_FIRST = auto()


def func_generator(cls, method_name, dispatch_fn, collect_fn, execute_fn):
    def func(*args, blocking=True, **kwargs):
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, DataProto):
                inject_trace_context(arg.meta_info)
        args, kwargs = dispatch_fn(cls, *args, **kwargs)
        output = execute_fn(method_name, *args, **kwargs)
        return collect_fn(cls, ray.get(output) if blocking else output)

    return func


def register(dispatch_mode, clear_cache=True, trace=False, prefetch=False, to_remote=False):
    def decorator(func: Any) -> Any:
        if asyncio.iscoroutinefunction(func):

            @wraps(func)
            async def inner(*args, **kwargs):
                return await func(*args, **kwargs)
        else:

            @wraps(func)
            def inner(*args, **kwargs):
                found = [arg.meta_info for arg in args if isinstance(arg, DataProto)] if trace else []
                with (
                    attach_trace_context(found[0] if found else {}),
                    get_tracer("worker").start_as_current_span(f"worker.{func.__name__}"),
                    get_tracer("worker").start_as_current_span("exec"),
                ):
                    return func(*args, **kwargs)

        setattr(inner, BIND_WORKER_METHOD_FLAG, {"dispatch_mode": dispatch_mode})
        return inner

    return decorator
