"""The policy of the data plane: its ranks fetch what they work on."""

from typing import Any

from nemo_rl.models.policy.lm_policy import Policy
from tests.nemo_rl.world import call


class TQPolicy(Policy):
    def get_logprobs_from_meta(self, meta: Any, micro_batch_size: Any = None, timer: Any = None) -> None:
        call(self.rank.get_logprobs, meta)

    def get_reference_policy_logprobs_from_meta(
        self, meta: Any, micro_batch_size: Any = None, timer: Any = None
    ) -> None:
        call(self.rank.get_reference_policy_logprobs, data=meta)
