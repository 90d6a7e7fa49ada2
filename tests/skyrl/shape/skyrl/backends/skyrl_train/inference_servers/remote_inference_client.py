"""A client whose servers answer two tokens to each prompt."""

from __future__ import annotations

import asyncio
from typing import Any


class RemoteInferenceClient:
    async def _generate_single(
        self,
        prompt_token_ids: list[int],
        sampling_params: dict,
        session_id: Any,
        model: str,
        mm_features: Any = None,
        cache_salt: Any = None,
        routed_experts_prompt_start: Any = None,
        return_sample_support: bool = False,
    ):
        await asyncio.sleep(0)
        return {"stop_reason": "stop", "response_ids": [4, 5]}

    async def sleep(self, level: int = 2, tags: Any = None): ...

    async def wake_up(self, tags: Any = None): ...
