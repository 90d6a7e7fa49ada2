"""Hooks on miles 0.1, which has the shape of slime.

Runs in the same processes. Source: miles 0.1.0, commit 31f1ca96, and the tag 0.1.0.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.slime import megatron_ranks, own_numbers, rollout_manager, train_script
from otel_rl.integrations.slime.checkout import version_of_miles
from otel_rl.single_controller.driver import driver

INTEGRATION = Integration(
    name="miles",
    package="miles",
    supports=">=0.1,<0.2",
    records="one trace a step across the driver, ranks and rollouts, also of asynchronous training",
    verified=Verified.PACKAGE,
    version=version_of_miles,
    needs=("ray", "torch"),
    hooks=(*train_script.MILES, *megatron_ranks.MILES, *rollout_manager.MILES, *own_numbers.MILES),
    arriving=rollout_manager.ARRIVING,
    roles=megatron_ranks.ROLES,
    memory=driver,
)
