"""Starts workers, and sends calls to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from areal.infra.rpc.guard import engine_blueprint


class SlurmScheduler:
    def create_workers(self, job: Any, *args: Any, **kwargs: Any) -> list[str]:
        return [self.start(job.role, index) for index in range(job.replicas)]

    def start(self, role: str, index: int) -> str:
        """Start a process, which here is this one."""
        return f"{role}/{index}"

    def send(self, worker_id: str, payload: dict[str, Any]) -> Any:
        return engine_blueprint.call_engine_method(json.dumps(payload))

    def call_engine(
        self,
        worker_id: str,
        method: str,
        engine_name: Any = None,
        *args: Any,
        rpc_meta: Any = None,
        http_timeout: float = 7200.0,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        **kwargs: Any,
    ):
        payload = {"method": method, "engine_name": engine_name or worker_id, "args": args, "rpc_meta": rpc_meta}
        return self.send(worker_id, payload)

    async def async_call_engine(
        self,
        worker_id: str,
        method: str,
        engine_name: Any = None,
        *args: Any,
        rpc_meta: Any = None,
        http_timeout: float = 7200.0,
        max_retries: int = 3,
        retry_delay: float = 1.0,
        **kwargs: Any,
    ):
        payload = {"method": method, "engine_name": engine_name or worker_id, "args": args, "rpc_meta": rpc_meta}
        return await asyncio.to_thread(self.send, worker_id, payload)
