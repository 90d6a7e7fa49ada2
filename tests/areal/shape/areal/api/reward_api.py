"""A reward function, called on a pool."""

from __future__ import annotations

from typing import Any


class AsyncRewardWrapper:
    def __init__(self, reward_fn: Any) -> None:
        self.reward_fn = reward_fn

    async def __call__(self, *args: Any, **kwargs: Any):
        return self.reward_fn(*args, **kwargs)
