"""How a model is trained: here a layer of eight numbers, on each rank its own."""

from __future__ import annotations

import numpy as np
import torch


class FSDP2InferStrategy:
    def __init__(self, worker):
        self.worker, self.model = worker, torch.nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def load_states(self, include=None, non_blocking=False):
        pass

    def offload_states(self, include=None, non_blocking=False):
        pass

    def model_update(self, *args, **kwargs):
        pass

    def forward_step(self, batch, forward_func=None):
        with torch.no_grad():
            ids = torch.tensor(batch.batch["input_ids"], dtype=torch.float32)
            return self._fsdp2_forward(ids, None, None, {}).numpy()

    def _fsdp2_forward(self, input_ids, attention_mask, position_ids, forward_args):
        return self.model(input_ids)


class FSDP2TrainStrategy(FSDP2InferStrategy):
    def train_step(self, batch, loss_func, no_sync=False):
        size = self.worker.worker_config.training_args.per_device_train_batch_size
        for part in np.array_split(np.arange(batch.batch.batch_size[0]), batch.batch.batch_size[0] // size):
            ids = torch.tensor(batch.batch["input_ids"][part], dtype=torch.float32)
            loss = self._fsdp2_forward(ids, None, None, {}).square().mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"actor/pg_loss@sum": float(loss.detach())}
