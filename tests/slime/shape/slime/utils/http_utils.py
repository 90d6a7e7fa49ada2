"""Calls of the engines."""

from typing import Any

from tests.slime.world import answer, tick


async def post(url: Any, payload: Any, max_retries: Any = 60, headers: Any = None) -> Any:
    tick(2)
    return answer(payload["version"])
