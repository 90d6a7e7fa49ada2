"""A rank."""

from typing import Any

from nemo_rl.models.policy.workers.base_policy_worker import AbstractPolicyWorker
from tests.nemo_rl.world import tick


class MegatronPolicyWorkerImpl(AbstractPolicyWorker):
    def train(
        self,
        data: Any,
        loss_fn: Any,
        eval_mode: Any = False,
        gbs: Any = None,
        mbs: Any = None,
        check_dim_skip_keys: Any = None,
    ) -> Any:
        tick(1)

    def get_logprobs(self, *, data: Any, micro_batch_size: Any = None, require_router_replay: Any = True) -> Any:  # type: ignore[override]
        tick(1)

    def prepare_for_lp_inference(self) -> Any:
        pass

    def prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        pass

    def offload_before_refit(self) -> Any:
        pass

    def offload_after_refit(self) -> Any:
        pass

    def stream_weights_via_ipc_zmq(self, buffer_size_bytes: Any = 0, kv_scales: Any = None) -> Any:
        pass

    def broadcast_weights_for_collective(self, kv_scales: Any = None) -> Any:
        pass
