"""A rank of the critic."""

from typing import Any


class MegatronValueWorkerImpl:
    def train(self, data: Any, loss_fn: Any, eval_mode: Any = False, gbs: Any = None, mbs: Any = None) -> Any:
        pass

    def get_values(self, data: Any, micro_batch_size: Any = None) -> Any:
        pass
