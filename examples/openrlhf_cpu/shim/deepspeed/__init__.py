"""The parts of DeepSpeed that OpenRLHF uses, on a CPU: one engine that keeps whole parameters, as ZeRO 0 does."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch import distributed

from .runtime.engine import DeepSpeedEngine

__version__ = version = "0.19.6"
zero = SimpleNamespace(
    GatheredParameters=lambda *args, **kwargs: nullcontext(), Init=lambda *args, **kwargs: nullcontext()
)


def init_distributed(dist_backend=None, timeout=None, **kwargs):
    distributed.init_process_group("gloo", timeout=timeout)


def initialize(model=None, optimizer=None, model_parameters=None, lr_scheduler=None, config=None, args=None, **kwargs):
    engine = DeepSpeedEngine(model, config)
    if model_parameters is not None:
        chosen = config["optimizer"]["params"]
        engine.optimizer = torch.optim.AdamW(
            model_parameters, lr=chosen["lr"], betas=tuple(chosen["betas"]), eps=chosen["eps"]
        )
        engine.lr_scheduler = lr_scheduler(engine.optimizer)
    return engine, engine.optimizer, None, engine.lr_scheduler
