"""Calls the ranks of one model."""

from __future__ import annotations

import asyncio
from typing import Any


class TrainController:
    def __init__(self, scheduler: Any, role: str) -> None:
        self.scheduler, self.role = scheduler, role

    def call(self, method: str, *args: Any, **meta: Any) -> Any:
        worker = f"{self.role}/0"
        return asyncio.run(self.scheduler.async_call_engine(worker, method, worker, *args, rpc_meta=meta or None))

    def save(self, meta: Any):
        self.scheduler.call_engine(f"{self.role}/0", "get_saved")
