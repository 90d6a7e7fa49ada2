"""One rank."""

from typing import Any

from miles.backends.megatron_utils.model import forward_only, train
from miles.backends.training_utils.loss import compute_advantages_and_returns
from miles.utils.timer import timer
from tests.slime.world import tick


def get_values() -> None:
    pass


class MegatronTrainRayActor:
    def init(
        self,
        args: Any,
        role: Any,
        *,
        with_ref: Any = False,
        with_opd_teacher: Any = False,
        recv_ckpt_src_rank: Any = None,
        indep_dp_info: Any,
    ) -> Any:
        self.args = args
        tick(1)

    def train(self, rollout_id: Any, rollout_data_ref: Any) -> Any:
        with timer("log_probs"):
            tick(1)
        forward_only(get_values, self.args, [self], [], [], rollout_id)
        compute_advantages_and_returns(self.args, {})
        train(rollout_id, [self], None, None, [], [1], [2], None, 0)
