"""Calls of the servers of environments."""

import asyncio
from typing import Any

from tests.prime_rl.world import episode, tick


class Env:
    def __init__(self, error: Any = "") -> None:
        self.error = error

    async def run(self, client: Any, model_name: Any, cache_salt: Any, task_data: Any) -> Any:
        tick(2)
        if isinstance(self.error, BaseException):
            raise self.error
        await asyncio.sleep(0)
        return episode(task_data["group"], 0, 1.0, self.error)
