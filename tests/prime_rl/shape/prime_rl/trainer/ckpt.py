"""Checkpoints."""

from typing import Any

from tests.prime_rl.world import tick


class CheckpointManager:
    def save(
        self, step: Any, model: Any, optimizers: Any, scheduler: Any, progress: Any, dataloader: Any = None
    ) -> None:
        tick(1)
