"""Calls the ranks of one model."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any


class TrainController:
    def __init__(self, scheduler: Any, role: str, replicas: int = 1) -> None:
        self.scheduler, self.role = scheduler, role
        self.workers = scheduler.create_workers(SimpleNamespace(role=role, replicas=replicas))

    def call(self, method: str, *args: Any, **meta: Any) -> Any:
        return asyncio.run(self._call_workers(method, args, meta or None))

    async def _call_workers(self, method: str, args: Any, meta: Any) -> Any:
        call = self.scheduler.async_call_engine
        return await asyncio.gather(*(call(one, method, one, *args, rpc_meta=meta) for one in self.workers))

    def save(self, meta: Any):
        self.call("get_saved")
