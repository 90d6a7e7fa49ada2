"""Ships batches."""

from typing import Any

from prime_rl import monitors
from tests.prime_rl.world import tick


class Orchestrator:
    def __init__(self, progress: Any) -> None:
        self.progress = progress

    async def finalize_train_batch(self, batch: Any) -> None:
        if not batch.samples:
            return
        tick(1)
        self.progress.step += 1
        await monitors.log({"train/agg/effective/agent/reward/mean": 0.5, "time/step": 2.0, "step": 1}, step=1)
