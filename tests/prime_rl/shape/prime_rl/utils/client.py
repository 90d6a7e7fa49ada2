"""The engines."""

from typing import Any

from tests.prime_rl.world import tick


class InferencePool:
    async def update_weights(self, weight_dir: Any, lora_name: Any = None, step: Any = 0) -> None:
        tick(1)
