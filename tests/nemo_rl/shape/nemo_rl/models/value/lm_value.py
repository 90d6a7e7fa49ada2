"""The critic, as the driver calls it."""

from typing import Any

from nemo_rl.models.value.workers.dtensor_value_worker_v2 import DTensorValueWorkerV2Impl
from tests.nemo_rl.world import call


class Value:
    def __init__(self) -> None:
        self.rank = DTensorValueWorkerV2Impl()

    def get_values(self, data: Any, micro_batch_size: Any = None, timer: Any = None) -> Any:
        return call(self.rank.get_values, data)

    def train(self, data: Any, loss_fn: Any, timer: Any = None) -> Any:
        return call(self.rank.train, data, loss_fn)
