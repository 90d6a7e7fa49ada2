"""Workflows run on a thread beside the steps."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from areal.infra import workflow_context
from areal.utils.perf_tracer import trace_session_event


@dataclass
class _RolloutResult:
    task_id: int
    trajectory: dict


class BatchTaskDispatcher:
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def active_submit_and_wait(self, input_generator: Any, batch_size: int, dynamic_bs: bool = False):
        results: list = []
        while len(results) < batch_size:
            results += filter(None, self.run([next(input_generator)], is_eval=False))
        return results

    def run(self, tasks: list, is_eval: bool) -> list:
        """Run tasks, each of a number, a workflow and data, and wait for them."""
        made: list = []

        async def work() -> None:
            made.extend(await asyncio.gather(*(self.execute(*task, is_eval) for task in tasks)))

        thread = threading.Thread(target=lambda: asyncio.run(work()))
        thread.start()
        thread.join()
        return made

    async def execute(self, task_id: int, workflow: Any, data: Any, is_eval: bool) -> _RolloutResult | None:
        workflow_context.set(workflow_context.WorkflowContext(is_eval=is_eval, task_id=task_id))
        try:
            made = await workflow.arun_episode(self.engine, data)
        except Exception:  # noqa: BLE001  as AReaL does
            trace_session_event("mark_finalized", task_id=task_id, status="failed", reason="workflow_exception")
            return None
        if made is None or (not is_eval and len(set(made["rewards"].tolist())) == 1):
            reason = "returned_none" if made is None else "rejected"
            trace_session_event("mark_finalized", task_id=task_id, status="rejected", reason=reason)
            return None
        trace_session_event("mark_finalized", task_id=task_id, status="accepted")
        return _RolloutResult(task_id, made)
