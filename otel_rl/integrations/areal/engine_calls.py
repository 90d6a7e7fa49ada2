"""Workers of AReaL's controller, and its calls to them by HTTP: the controller's span goes along.

Source: AReaL 1.0.4, ``infra/scheduler/local.py`` and ``slurm.py`` (``create_workers``, ``async_call_engine``),
``infra/rpc/guard/engine_blueprint.py``. Workers are programs of their own that inherit the controller's environment:
nothing else tells them that they are no controllers. A call has ``rpc_meta``, a dictionary of which a worker reads
``broadcast``; the carrier is a further entry. The worker runs the call on a thread of its own, as a function that has
``rpc_meta`` in its closure. With Ray as scheduler, ``integrations/ray`` carries the span.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from otel_rl.hooks import Args, CallbackHook, Hook, Kwargs, RemoteHook
from otel_rl.hooks.hook import wrap
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.single_controller.started import lend_environment, restore_environment

META: Final = "rpc_meta"
ENTRY: Final = "otel_rl"
GUARD = "areal.infra.rpc.guard"
SCHEDULERS = "areal.infra.scheduler.local:LocalScheduler", "areal.infra.scheduler.slurm:SlurmScheduler"


def _send(args: Args, kwargs: Kwargs, carrier: Any) -> tuple[Args, Kwargs]:
    return args, {**kwargs, META: {**(kwargs.get(META) or {}), ENTRY: carrier.to_headers()}}


def _sent(function: Callable[..., Any]) -> Carrier | None:
    """Return the carrier in the closure of a call, if there is one."""
    code = getattr(function, "__code__", None)
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True)) if code is not None else {}
    meta = cells[META].cell_contents if META in cells else None
    return Carrier.from_headers(meta[ENTRY]) if meta and ENTRY in meta else None


def _take(args: Args, kwargs: Kwargs, carrier: object) -> tuple[Args, Kwargs]:
    """Let the thread of the engines use the carrier: ``_submit_to_engine_thread(func_name, func, ...)``."""
    name, function, *rest = args
    sent = _sent(function)
    if sent is None:
        return args, kwargs
    called = RemoteHook(target=f"{GUARD}.engine_blueprint:call_engine_method", extract=lambda args, kwargs: sent)
    return (name, wrap(called, function), *rest), kwargs


def _configured(args: Args, kwargs: Kwargs, result: object) -> None:
    """Learn which worker this is: ``configure_state_from_args(state, args)``."""
    guard = args[0]
    if state.identity.is_worker:
        state.inherit(role=str(guard.role), rank=max(0, int(guard.worker_index)))


def role_of_actor(kind: type, name: str) -> str | None:
    """Return the role of a worker of Ray, which is named by role and index, as in ``actor/0``."""
    return name.partition("/")[0] if kind.__name__ == "RayRPCServer" and "/" in name else None


HOOKS: tuple[Hook, ...] = (
    *(
        CallbackHook(
            target=f"{scheduler}.create_workers",
            before=lend_environment,
            after=restore_environment,
            failed=restore_environment,
        )
        for scheduler in SCHEDULERS
    ),
    *(
        RemoteHook(target=f"{scheduler}.{call}", inject=_send)
        for scheduler in SCHEDULERS
        for call in ("call_engine", "async_call_engine")
    ),
    RemoteHook(target=f"{GUARD}.engine_blueprint:_submit_to_engine_thread", inject=_take, needs_step=False),
    CallbackHook(target=f"{GUARD}.app:configure_state_from_args", after=_configured),
)
