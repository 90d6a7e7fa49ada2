"""Hooks on verl 0.9: one trace a step across the driver, the ranks, agent loops, rollout servers and reward workers.

Runs in all of these processes. The trainers are those of ``trainer.v1.trainer_mode`` (``sync``, ``colocate_async``,
``separate_async``), with a critic or without, and the one before them (``trainer.use_v1=False``). Ray carries the
caller's span along (``integrations/ray``).
"""

from __future__ import annotations

from otel_rl.hooks import Integration, Verified
from otel_rl.integrations.verl import agent_loops, ledger, trainer, workers
from otel_rl.single_controller.driver import driver

ROLES = (
    ("TaskRunnerV1", "driver"),
    ("TaskRunner", "driver"),
    ("WorkerDict", "actor"),
    ("AgentLoopWorker", "agent_loop"),
    ("RewardLoopWorker", "reward"),
    ("GlobalRequestLoadBalancer", "router"),
    ("vLLMHttpServer", "rollout"),
    ("SGLangHttpServer", "rollout"),
    ("CheckpointEngineWorker", "rollout_weights"),
)

INTEGRATION = Integration(
    name="verl",
    package="verl",
    supports=">=0.9,<0.10",
    records="one trace a step across the driver, ranks, agent loops, rollout servers and reward workers",
    verified=Verified.REAL,
    needs=("ray", "torch"),
    hooks=(*trainer.HOOKS, *workers.HOOKS, *agent_loops.HOOKS, *ledger.LEDGER_HOOKS),
    arriving=agent_loops.ARRIVING,
    roles=ROLES,
    memory=driver,
)
