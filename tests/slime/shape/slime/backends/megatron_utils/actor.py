"""One rank."""

from typing import Any

from slime.backends.megatron_utils.loss import compute_advantages_and_returns
from slime.backends.megatron_utils.model import forward_only, train
from slime.observability import logging_utils
from slime.observability.timer import timer
from tests.slime.world import tick


def get_log_probs_and_entropy() -> None:
    pass


class MegatronTrainRayActor:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def init(self, args: Any, role: Any, with_ref: Any = False, with_opd_teacher: Any = False) -> Any:
        self.args = args
        tick(1)

    def train(self, rollout_id: Any, rollout_data_ref: Any, external_data: Any = None) -> Any:
        with timer("data_preprocess"):
            tick(1)
        with timer("train"):
            for name in ("ref_log_probs", "log_probs"):
                with timer(name):
                    forward_only(get_log_probs_and_entropy, self.args, [self], [], [])
            compute_advantages_and_returns(self.args, {})
            rewards = [sample.reward for sample in rollout_data_ref]
            numbers = {"rollout/raw_reward": sum(rewards) / max(1, len(rewards)), "rollout/step": rollout_id}
            logging_utils.log(self.args, numbers, step_key="rollout/step")
            with timer("actor_train"):
                tick(self.args.slow * self.rank)
                train(rollout_id, [self], None, None, [], [1], [2])

    @timer
    def save_model(self, rollout_id: Any, force_sync: Any = False) -> None:
        tick(1)

    @timer
    def update_weights(self) -> None:
        tick(1)
