"""What all ranks have."""

from typing import Any


class AbstractPolicyWorker:
    def get_logprobs(self, data: Any, micro_batch_size: Any = None) -> Any:
        raise NotImplementedError

    def get_reference_policy_logprobs(self, *, data: Any, micro_batch_size: Any = None) -> Any:
        return self.get_logprobs(data)
