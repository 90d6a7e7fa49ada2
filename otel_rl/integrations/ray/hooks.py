"""Hooks on Ray: each call of an actor or a task takes a carrier along, and its process records below the caller's span.

Runs in the driver, and in every process that Ray starts for actors and tasks. Source: ray 2.60, ``_private/worker.py``
(``init``), ``_common/signature.py`` (``flatten_args``), ``actor.py``, ``remote_function.py``,
``_private/function_manager.py``. Ray gives each method of an actor's class the keyword ``_ray_trace_ctx``, also while
its own tracing is off, and takes it out again. A process without otel_rl notices nothing of it.

All targets but ``init`` are private. One that is gone is logged once; then less is recorded.
"""

from __future__ import annotations

from otel_rl.hooks import CallbackHook, Integration, RemoteHook, Verified
from otel_rl.integrations.ray.announce import announce
from otel_rl.integrations.ray.calling import (
    calling,
    complete_signatures,
    count_actor,
    counted,
    not_counted,
    send,
    take_with_task,
)
from otel_rl.integrations.ray.serving import arrive, receive

ACTOR = "ray.actor"
MANAGER = "ray._private.function_manager:FunctionActorManager"

INTEGRATION = Integration(
    name="ray",
    package="ray",
    supports=">=2.41",
    records="which step each call of an actor or a task works for",
    verified=Verified.REAL,
    memory=calling,
    hooks=(
        RemoteHook(target="ray._private.worker:init", inject=announce, needs_step=False),
        RemoteHook(target="ray:init", inject=announce, needs_step=False),
        CallbackHook(target=f"{ACTOR}:_ActorClassMethodMetadata.create", after=complete_signatures),
        CallbackHook(target=f"{ACTOR}:ActorClass._remote", before=count_actor, after=counted, failed=not_counted),
        RemoteHook(target=f"{ACTOR}:signature.flatten_args", inject=send, needs_step=False),
        RemoteHook(target="ray.remote_function:_inject_tracing_into_function", inject=take_with_task, needs_step=False),
        CallbackHook(target=f"{MANAGER}._load_actor_class_from_gcs", after=arrive),
        RemoteHook(target=f"{MANAGER}._make_actor_method_executor", inject=receive, needs_step=False),
    ),
)
