"""Hooks on OpenRLHF 0.11: one trace a step across its trainer, ranks and rollout engines.

Runs in all of these processes. Source: the wheel of OpenRLHF 0.11.2. Ray carries the caller's span along
(``integrations/ray``); requests are vLLM's, backwards and optimizer steps DeepSpeed's.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.openrlhf import actors, generation, logged_numbers, ppo_trainer, scored_samples
from otel_rl.single_controller.driver import DRIVER, driver

ROLES = (
    ("PPOTrainer", DRIVER),
    ("TrainingActor", DRIVER),
    ("GenerateSamplesActor", "generator"),
    ("PolicyModelActor", "actor"),
    ("CriticModelActor", "critic"),
    ("ReferenceModelActor", "reference"),
    ("RewardModelActor", "reward"),
    ("RolloutRayActor", "rollout"),
)

INTEGRATION = Integration(
    name="openrlhf",
    package="openrlhf",
    supports=">=0.11,<0.12",
    records="one trace a step across the trainer, ranks and rollout engines, also of asynchronous training",
    verified=Verified.OWN_CODE,
    needs=("ray", "torch"),
    hooks=(*ppo_trainer.HOOKS, *generation.HOOKS, *actors.HOOKS, *scored_samples.HOOKS, *logged_numbers.HOOKS),
    arriving=(*ppo_trainer.ARRIVING, *generation.ARRIVING, *actors.ARRIVING),
    roles=ROLES,
    memory=driver,
)
