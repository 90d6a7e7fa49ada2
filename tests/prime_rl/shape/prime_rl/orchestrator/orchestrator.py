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
        step, rewards = self.progress.step - 1, [trace.reward for one in batch.cohort for trace in one.traces]
        agent = "train/agg/effective/agent"
        numbers = {
            f"{agent}/reward/mean": sum(rewards) / len(rewards),
            f"{agent}/num_output_tokens/mean": 5.0,
            "time/step": 2.0,
            "step": step,
        }
        await monitors.log(numbers, step=step)
