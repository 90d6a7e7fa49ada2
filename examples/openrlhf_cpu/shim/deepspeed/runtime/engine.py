"""An engine with the methods of DeepSpeed's: gradients are averaged over the ranks at each boundary."""

from pathlib import Path

import torch
from torch import distributed


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, model, config):
        super().__init__()
        self.module, self.config_of_engine = model, config
        self.optimizer = self.lr_scheduler = None
        self.micro_steps, self.norm = 0, None
        ranks = distributed.get_world_size()
        whole, part = config.get("train_batch_size", 1), config["train_micro_batch_size_per_gpu"]
        self.accumulates = max(1, whole // (part * ranks))

    @property
    def config(self):
        return self.module.config

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def is_gradient_accumulation_boundary(self):
        return (self.micro_steps + 1) % self.accumulates == 0

    def backward(self, loss, **kwargs):
        (loss / self.accumulates).backward()
        if self.is_gradient_accumulation_boundary():
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    gradient = parameter.grad.float()
                    distributed.all_reduce(gradient)
                    parameter.grad = (gradient / distributed.get_world_size()).to(parameter.dtype)

    def step(self):
        if self.is_gradient_accumulation_boundary():
            limit = self.config_of_engine["gradient_clipping"] or 1e9
            self.norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit)
            self.optimizer.step()
            self.lr_scheduler.step()
            self.optimizer.zero_grad()
        self.micro_steps += 1

    def was_step_applied(self):
        return True

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self):
        return self.norm

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True):
        folder = Path(save_dir, tag)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save((self.module.state_dict(), client_state), folder / f"rank_{distributed.get_rank()}.pt")
        Path(save_dir, "latest").write_text(tag)

    def load_checkpoint(self, load_dir, tag=None, **kwargs):
        latest = Path(load_dir, "latest")
        if not latest.exists():
            return None, {}
        folder = Path(load_dir, latest.read_text())
        state, client_state = torch.load(folder / f"rank_{distributed.get_rank()}.pt", weights_only=False)
        self.module.load_state_dict(state)
        return str(folder), client_state
