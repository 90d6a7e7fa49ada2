"""The policy, as the driver calls it."""

from typing import Any

from nemo_rl.models.policy.workers.dtensor_policy_worker_v2 import DTensorPolicyWorkerV2Impl
from tests.nemo_rl.world import call


class Policy:
    def __init__(self) -> None:
        self.rank = DTensorPolicyWorkerV2Impl()

    def get_logprobs(self, data: Any, timer: Any = None) -> Any:
        return call(self.rank.get_logprobs, data)

    def get_reference_policy_logprobs(self, data: Any, micro_batch_size: Any = None, timer: Any = None) -> Any:
        return call(self.rank.get_reference_policy_logprobs, data=data)

    def train(self, data: Any, loss_fn: Any, timer: Any = None) -> Any:
        return call(self.rank.train, data, loss_fn)
