"""How a model is trained: here a layer of eight numbers, on each rank its own."""

from __future__ import annotations

from types import SimpleNamespace

import torch


class FSDP2InferStrategy:
    def __init__(self, worker):
        self.worker = worker
        worker.rank_info = SimpleNamespace(cp_size=1)
        self.initialize_fsdp2_model(torch.nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def initialize_fsdp2_model(self, model):
        self.model = model

    def load_states(self, include=None, non_blocking=False):
        pass

    def offload_states(self, include=None, non_blocking=False):
        pass

    def model_update(self, *args, **kwargs):
        pass

    def forward_step(self, batch, forward_func=None):
        with torch.no_grad():
            return self._forward(batch).numpy()

    def _forward(self, data):
        return self._fsdp2_forward(
            input_ids=data.batch["input_ids"],
            attention_mask=data.batch["attention_mask"],
            position_ids=None,
            forward_args={},
        )

    def _fsdp2_forward(self, input_ids, attention_mask, position_ids, forward_args):
        return self.model(input_ids.float())


class FSDP2TrainStrategy(FSDP2InferStrategy):
    def train_step(self, batch, loss_func, no_sync=False):
        size = self.worker.worker_config.training_args.per_device_train_batch_size
        for part in batch.chunk(batch.batch.batch_size[0] // size):
            loss = self._forward(part).square().mean()
            loss.backward()
        self._clip_grad_norm(max_norm=1e9)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"actor/pg_loss@sum": float(loss.detach())}

    def _clip_grad_norm(self, max_norm: float):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
