"""Starts episodes and hands them on."""

import asyncio
from argparse import Namespace
from typing import Any


class Dispatcher:
    def __init__(self, env: Any) -> None:
        self.env, self.groups, self.tasks = env, {}, []

    async def schedule_group_episode(self, group_id: Any, group: Any) -> Any:
        self.groups[group_id] = group
        await asyncio.sleep(0)
        run = self.env.run(client=None, model_name="", cache_salt=None, task_data={"group": group_id})
        self.tasks.append((Namespace(group_id=group_id), asyncio.create_task(run)))
        return True

    async def emit_episode(self, meta: Any, group: Any, episode: Any) -> None:
        group.emitted += 1
        episode.run.work.policy.start = group.policy_version_at_start
        if group.emitted >= group.target_episodes:
            self.groups.pop(meta.group_id, None)

    async def drop_group(self, group_id: Any, *, reason: Any) -> Any:
        group = self.groups.pop(group_id, None)
        owed = 0 if group is None else group.target_episodes - group.emitted
        for task in [task for meta, task in self.tasks if meta.group_id == group_id]:
            task.cancel()
        await asyncio.sleep(0)
        return owed

    async def cancel_inflight_episodes(self) -> None:
        self.groups.clear()

    async def cancel_inflight_train_episodes(self) -> Any:
        self.groups.clear()
        return 1
