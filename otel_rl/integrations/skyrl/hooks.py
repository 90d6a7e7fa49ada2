"""Hooks on SkyRL 0.4: one trace a step across its trainer, ranks and rollouts, also of asynchronous training.

Runs in all of these processes. Source: the wheel of SkyRL 0.4.0. Ray carries the caller's span along
(``integrations/ray``); requests are vLLM's, backwards, clipping and optimizer steps torch's or Megatron's.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.skyrl import actor_ranks, gym_rollouts, ray_ppo, tracker_log, training_input
from otel_rl.single_controller.driver import driver

INTEGRATION = Integration(
    name="skyrl",
    package="skyrl",
    supports=">=0.4,<0.5",
    records="one trace a step across the trainer, ranks and agent loops, also of fully asynchronous training",
    verified=Verified.PACKAGE,
    needs=("ray", "torch"),
    hooks=(
        *ray_ppo.HOOKS,
        *gym_rollouts.HOOKS,
        *training_input.HOOKS,
        *tracker_log.HOOKS,
        *actor_ranks.HOOKS,
    ),
    arriving=actor_ranks.ARRIVING,
    roles=(
        ("PolicyWorkerBase", "actor"),
        ("CriticWorkerBase", "critic"),
        ("RefWorkerBase", "reference"),
        ("VLLMServerActor", "rollout"),
    ),
    memory=driver,
)
