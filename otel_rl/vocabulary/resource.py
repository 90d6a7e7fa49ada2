"""Who records: attributes of the resource."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import PROPOSAL, SEMCONV, resource

SERVICE_NAME: Final = resource("service.name", "string", "OTEL_SERVICE_NAME, else `<system>-<role>`", SEMCONV)
SERVICE_INSTANCE_ID: Final = resource(
    "service.instance.id", "string", "UUIDv5 of attempt, role, rank, pid, start", SEMCONV
)
HOST_NAME: Final = resource("host.name", "string", "name of the node", SEMCONV)
PROCESS_PID: Final = resource("process.pid", "int", "process id", SEMCONV)
DISTRO_NAME: Final = resource("telemetry.distro.name", "string", "`otel_rl`", SEMCONV)
DISTRO_VERSION: Final = resource("telemetry.distro.version", "string", "version of otel_rl", SEMCONV)
SYSTEM: Final = resource("rl.system", "string", "the training framework, such as `trl`", PROPOSAL)
SYSTEM_VERSION: Final = resource("rl.system.version", "string", "its version", PROPOSAL)
RUN_ID: Final = resource("rl.run.id", "string", "the run's name; may repeat", PROPOSAL)
ALGORITHM: Final = resource("rl.algorithm", "string", "such as `GRPO`; also on steps of loops with another", PROPOSAL)
MODEL_NAME: Final = resource("rl.model.name", "string", "name of the trained model", PROPOSAL)
ATTEMPT_ID: Final = resource(
    "rl.attempt.id", "string", "one per start of the job, equal on every rank; random or `OTEL_RL_ATTEMPT_ID`"
)
ROLE: Final = resource(
    "rl.role",
    "string",
    "what the process does: `trainer`, `driver`, `rollout`, `worker`, `sidecar`, or the role of its Ray actor",
)
ACTOR_ID: Final = resource("rl.actor.id", "string", "Ray's id of the actor that the process holds")
ACTOR_NAME: Final = resource("rl.actor.name", "string", "its name, if it has one")
RANK: Final = resource("rl.rank", "int", "rank, unique within `rl.role`")
MEMORY_LIMIT: Final = resource(
    "rl.memory.host.limit",
    "int",
    "bytes that all processes of the host have together: its memory, or its cgroup's limit",
)
LOCAL_RANK: Final = resource("rl.local_rank", "int", "rank on the node")
WORLD_SIZE: Final = resource("rl.world_size", "int", "number of ranks of the role")
RANK_DP: Final = resource("rl.rank.dp", "int", "data-parallel index; ranks of a role with the same index share samples")
RANK_TP: Final = resource("rl.rank.tp", "int", "place in the tensor-parallel group")
RANK_PP: Final = resource("rl.rank.pp", "int", "pipeline stage; ranks of one role are compared within it")
RANK_CP: Final = resource("rl.rank.cp", "int", "place in the context- or sequence-parallel group")
RANK_EP: Final = resource("rl.rank.ep", "int", "place in the expert-parallel group")
