"""Hooks on OpenRLHF 0.11: one trace a step across its trainer, ranks and rollout engines.

Runs in all of these processes. Source: the wheel of OpenRLHF 0.11.2. Ray carries the caller's span along
(``integrations/ray``); requests are vLLM's, backwards and optimizer steps DeepSpeed's.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.openrlhf import numbers as logged
from otel_rl.integrations.openrlhf import rollouts, samples, trainer, workers
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
    hooks=(*trainer.HOOKS, *rollouts.HOOKS, *workers.HOOKS, *samples.HOOKS, *logged.HOOKS),
    arriving=(*trainer.ARRIVING, *rollouts.ARRIVING, *workers.ARRIVING),
    roles=ROLES,
    memory=driver,
)
