"""Hooks on ROLL 0.2.1 to 0.3.0: one trace a step across its driver, workers, schedulers, routers and environments.

Runs in all of these processes. Ray carries the caller's span along (``integrations/ray``). ``native.py`` says
where ROLL's own spans go.
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.roll import (
    advantages,
    clusters,
    environments,
    micro_batches,
    native,
    pipeline,
    schedulers,
    trackers,
)
from otel_rl.integrations.roll.shape import role_of_actor, version_of_tree
from otel_rl.single_controller.driver import driver

INTEGRATION = Integration(
    name="roll",
    package="roll",
    supports=">=0.2.1,<0.4",
    records="RLVR and agentic pipelines: one trace a step across the driver, clusters, schedulers and environments",
    verified=Verified.PACKAGE,
    version=version_of_tree,
    needs=("ray", "torch"),
    hooks=(
        *pipeline.HOOKS,
        *clusters.HOOKS,
        *micro_batches.HOOKS,
        *schedulers.HOOKS,
        *advantages.HOOKS,
        *environments.HOOKS,
        *trackers.HOOKS,
        *native.HOOKS,
    ),
    attachments=(*trackers.ATTACHMENTS, *native.ATTACHMENTS),
    arriving=(*clusters.ARRIVING, *environments.ARRIVING),
    role_of=role_of_actor,
    memory=driver,
)
