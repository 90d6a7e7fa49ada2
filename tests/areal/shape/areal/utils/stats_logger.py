"""A logger that keeps what it gets."""

from __future__ import annotations

from typing import Any


class StatsLogger:
    def __init__(self) -> None:
        self.start_time = 0.0
        self.committed: list[Any] = []

    def commit(self, epoch: int, step: int, global_step: int, data: Any):
        self.committed.append((global_step, data))
