"""Who records: attributes of the resource."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import PROPOSAL, SEMCONV, attribute

SERVICE_NAME: Final = attribute(
    "service.name", "string", "resource", "OTEL_SERVICE_NAME, else `<system>-<role>`", SEMCONV
)
SERVICE_INSTANCE_ID: Final = attribute(
    "service.instance.id", "string", "resource", "UUIDv5 of attempt, role, rank, pid and start time", SEMCONV
)
HOST_NAME: Final = attribute("host.name", "string", "resource", "name of the node", SEMCONV)
PROCESS_PID: Final = attribute("process.pid", "int", "resource", "process id", SEMCONV)
DISTRO_NAME: Final = attribute("telemetry.distro.name", "string", "resource", "`otel_rl`", SEMCONV)
DISTRO_VERSION: Final = attribute("telemetry.distro.version", "string", "resource", "version of otel_rl", SEMCONV)
SYSTEM: Final = attribute("rl.system", "string", "resource", "the training framework, e.g. `trl`", PROPOSAL)
SYSTEM_VERSION: Final = attribute("rl.system.version", "string", "resource", "its version", PROPOSAL)
RUN_ID: Final = attribute("rl.run.id", "string", "resource", "the run's name; may repeat", PROPOSAL)
ALGORITHM: Final = attribute(
    "rl.algorithm", "string", "resource", "e.g. `GRPO`; also on the steps of a loop that uses another one", PROPOSAL
)
MODEL_NAME: Final = attribute("rl.model.name", "string", "resource", "name of the trained model", PROPOSAL)
ATTEMPT_ID: Final = attribute(
    "rl.attempt.id",
    "string",
    "resource",
    "one per start of the job, the same on every rank; random or `OTEL_RL_ATTEMPT_ID`",
)
ROLE: Final = attribute("rl.role", "string", "resource", "what the process does: `trainer`, `actor`, `rollout`, ...")
RANK: Final = attribute("rl.rank", "int", "resource", "rank, unique within `rl.role`")
LOCAL_RANK: Final = attribute("rl.local_rank", "int", "resource", "rank on the node")
WORLD_SIZE: Final = attribute("rl.world_size", "int", "resource", "number of ranks of the role")
RANK_DP: Final = attribute(
    "rl.rank.dp",
    "int",
    "resource",
    "place among the data-parallel groups: ranks of one role that share it share samples",
)
RANK_TP: Final = attribute("rl.rank.tp", "int", "resource", "place in the tensor-parallel group")
RANK_PP: Final = attribute(
    "rl.rank.pp", "int", "resource", "pipeline stage: ranks of one role are compared with those of the same stage"
)
RANK_CP: Final = attribute("rl.rank.cp", "int", "resource", "place in the context- or sequence-parallel group")
RANK_EP: Final = attribute("rl.rank.ep", "int", "resource", "place in the expert-parallel group")
