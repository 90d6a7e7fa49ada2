"""A rank of the actor or of the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from areal.utils.perf_tracer import trace_perf, trace_scope


class FSDPEngine:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)

    def initialize(self) -> None: ...

    def forward(self) -> Any:
        with trace_scope("fsdp_engine.forward"):
            return self.model(torch.ones(1, 1))

    @trace_perf("ppo_actor.compute_logp")
    def compute_logp(self) -> None:
        self.forward()

    @trace_perf("ppo_actor.compute_advantages")
    def compute_advantages(self) -> None: ...

    @trace_perf("ppo_actor.ppo_update")
    def ppo_update(self) -> None:
        loss = self.forward().sum()
        with trace_scope("fsdp_engine.backward"):
            loss.backward()

    def update_weights(self) -> None:
        with trace_scope("fsdp_engine.update_weights_from_disk"):
            pass

    def save(self, meta: Any):
        assert meta.weight_format


def meta() -> Any:
    return SimpleNamespace(weight_format="hf")
