"""A client whose servers answer two tokens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import torch
from areal.api.workflow_api import RolloutWorkflow


class GroupedRolloutWorkflow(RolloutWorkflow):
    def __init__(self, workflow: RolloutWorkflow, group_size: int) -> None:
        self.workflow, self.group_size = workflow, group_size

    async def arun_episode(self, engine: Any, data: Any):
        made = await asyncio.gather(*(self.workflow.arun_episode(engine, data) for _ in range(self.group_size)))
        valid = [one for one in made if one is not None]
        return {key: torch.cat([one[key] for one in valid]) for key in valid[0]} if valid else None


class RemoteInfEngine:
    def __init__(self) -> None:
        self.version = 0

    def get_version(self) -> int:
        return self.version

    def _resolve_workflow(
        self, workflow: Any, workflow_kwargs: Any, group_size: int = 1, proxy_addr: Any = None
    ) -> RolloutWorkflow:
        return GroupedRolloutWorkflow(workflow, group_size) if group_size > 1 else workflow

    async def agenerate(self, req: Any):
        await asyncio.sleep(0)
        return SimpleNamespace(output_tokens=[4, 5], output_versions=[self.version] * 2, stop_reason="stop")
