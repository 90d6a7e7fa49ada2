"""Calls of engines, which run on one thread, one after the other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from areal.utils import perf_tracer

_engines: dict[str, Any] = {}
_engine_thread = ThreadPoolExecutor(max_workers=1)


def _submit_to_engine_thread(func_name: str, func: Any, *args: Any, **kwargs: Any):
    return _engine_thread.submit(func, *args, **kwargs).result()


def call_engine_method(body: str) -> Any:
    payload = json.loads(body)
    method_name, engine_name, rpc_meta = payload["method"], payload["engine_name"], payload["rpc_meta"]
    engine = _engines[engine_name]

    def execute_in_engine_thread() -> Any:
        assert rpc_meta is None or isinstance(rpc_meta.get("broadcast", False), bool)
        with perf_tracer.trace_scope(f"rpc.{method_name}", args={"method": method_name, "engine": engine_name}):
            return getattr(engine, method_name)(*payload["args"])

    return _submit_to_engine_thread(f"call_{method_name}", execute_in_engine_thread)
