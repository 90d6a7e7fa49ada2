"""Hooks on slime 0.3: one trace a step across its driver, ranks and rollouts.

Runs in all of these processes. Source: slime 0.3.1, commit 624b824a, and the tags 0.3.0 and 0.3.1. Ray carries the
caller's span along (``integrations/ray``); requests are SGLang's, forwards, backwards and optimizer steps Megatron's.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.slime import megatron_ranks, own_numbers, rollout_manager, train_script
from otel_rl.integrations.slime.checkout import version_of_slime
from otel_rl.single_controller.driver import driver

INTEGRATION = Integration(
    name="slime",
    package="slime",
    supports=">=0.3,<0.4",
    records="one trace a step across the driver, ranks and rollouts, also of asynchronous training",
    verified=Verified.PACKAGE,
    version=version_of_slime,
    needs=("ray", "torch"),
    hooks=(*train_script.SLIME, *megatron_ranks.SLIME, *rollout_manager.SLIME, *own_numbers.SLIME),
    arriving=rollout_manager.ARRIVING,
    roles=megatron_ranks.ROLES,
    memory=driver,
)
