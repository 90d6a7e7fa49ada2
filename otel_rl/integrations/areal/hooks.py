"""Hooks on AReaL 1.0.4 and 2.0: one trace a step across its trainer and ranks; each group of rollouts is another one.

Runs in all of these processes. Source: the wheel of AReaL 1.0.4, and its tag v2.0.0. Backwards and optimizer steps are
torch's or Megatron's; requests are vLLM's or SGLang's.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.areal import committed_stats, engine_calls, episodes, scopes
from otel_rl.single_controller.driver import driver

INTEGRATION = Integration(
    name="areal",
    package="areal",
    supports=">=1.0.4,<2.1",
    records="PPO trainers: one trace a step across the controller and its ranks, and one for each group of rollouts",
    verified=Verified.PACKAGE,
    needs=("ray", "torch"),
    hooks=(*scopes.HOOKS, *episodes.HOOKS, *engine_calls.HOOKS, *committed_stats.HOOKS),
    role_of=engine_calls.role_of_actor,
    memory=driver,
)
