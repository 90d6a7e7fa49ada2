"""Ranks, of which an actor of Ray has a class that is derived from these."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper


class TrainingInputBatch(dict):
    """Tensors by name, whose length is the number of samples."""

    def __init__(self, tensors: dict, metadata: dict) -> None:
        super().__init__(tensors)
        self.metadata = metadata

    def __len__(self):
        return len(self["sequences"])


class Experience(SimpleNamespace):
    """A micro-batch."""

    def to_device(self) -> None:
        """Move all tensors; those of before are no longer what is trained, and on a GPU they lie elsewhere."""
        for name, tensor in list(vars(self).items()):
            setattr(self, name, tensor.clone())
            tensor.zero_()


class DistributedTorchRayActor:
    def __init__(self, world_size: int = 0, rank: int = 0) -> None:
        if world_size:
            os.environ["WORLD_SIZE"], os.environ["RANK"] = str(world_size), str(rank)


class Worker(DistributedTorchRayActor):
    def init_model(self, *args: Any, **kwargs: Any):
        self.model = HFModelWrapper()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def forward(self, *args: Any, **kwargs: Any):
        (data,) = (*args, *kwargs.values())
        with torch.no_grad():
            return self.model(data["sequences"], data["loss_mask"].shape[1], data["attention_mask"])

    def offload_to_cpu(self, offload_optimizer: bool = True, offload_model: bool = True): ...

    def backload_to_gpu(self, backload_optimizer: bool = True, backload_model: bool = True): ...

    def save_checkpoint(self, ckpt_dir: str, tokenizer: Any = None): ...


class PolicyWorkerBase(Worker):
    def forward_backward(
        self, data: Any, loss_fn: Any = None, loss_fn_config: Any = None, return_per_token_outputs: bool = True
    ):
        names = "sequences", "loss_mask", "attention_mask"
        for row in range(len(data)):
            part = Experience(**{name: data[name][row : row + 1].clone() for name in names})
            self._forward_backward_micro(part, 1 / len(data))

    def _forward_backward_micro(
        self,
        experience: Any,
        microbatch_weight: float,
        loss_fn: Any = None,
        loss_fn_config: Any = None,
        return_per_token_outputs: bool = True,
    ):
        experience.to_device()
        logprobs, _ = self.model(
            experience.sequences,
            experience.loss_mask.shape[1],
            attention_mask=experience.attention_mask,
            return_output=True,
        )
        (logprobs * experience.loss_mask).sum().backward()

    def optim_step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        return 0.5

    async def broadcast_to_inference_engines(
        self, inference_engine_client: Any, inference_engine_cfg: Any, model_id: Any = None
    ): ...


class CriticWorkerBase(Worker):
    def forward_backward(self, data: Any):
        self._forward_backward_micro(data)

    def _forward_backward_micro(self, experience: Any, microbatch_weight: Any = None): ...

    def optim_step(self): ...


class RefWorkerBase(Worker):
    pass


class FSDPPolicyWorkerBase(PolicyWorkerBase):
    pass


class FSDPCriticWorkerBase(CriticWorkerBase):
    def forward(self, data: Any):
        return data["values"]


class FSDPRefWorkerBase(RefWorkerBase):
    pass
