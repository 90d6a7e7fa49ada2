"""A rank of the critic."""

from typing import Any

from nemo_rl.models.automodel.train import forward_with_post_processing_fn


class DTensorValueWorkerV2Impl:
    def train(self, data: Any, loss_fn: Any, eval_mode: Any = False, gbs: Any = None, mbs: Any = None) -> Any:
        forward_with_post_processing_fn(None, None, data)

    def get_values(self, data: Any, micro_batch_size: Any = None) -> Any:
        forward_with_post_processing_fn(None, None, data)
