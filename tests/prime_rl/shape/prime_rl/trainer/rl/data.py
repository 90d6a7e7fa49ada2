"""Batches."""

from typing import Any

from tests.prime_rl.world import tick


class DataLoader:
    def __init__(self, output_dir: Any, start_step: Any, dp_world_size: Any, config: Any) -> None:
        pass

    def wait_for_batch(self) -> None:
        tick(3)

    def get_batch(self) -> Any:
        tick(1)
        return [None, None]
