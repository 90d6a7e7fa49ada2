"""PyTorch's process groups and meshes: from them a rank learns which one it is, of which attempt, and where it stands.

Runs in every process that imports torch. Source: torch 2.13 to 2.15, ``torch/distributed/distributed_c10d.py`` and
``device_mesh.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from otel_rl.actions.chosen import share_actions
from otel_rl.clock import monotonic_ns
from otel_rl.comm import buffers
from otel_rl.comm.memory import comm
from otel_rl.guard import say
from otel_rl.hooks import Args, Attachment, CallbackHook, Kwargs, ReturnHook
from otel_rl.process.identity import identifying
from otel_rl.process.layout import layout
from otel_rl.process.state import state
from otel_rl.trace.attempt import know_attempt
from otel_rl.trace.child_process import join_parent, join_worker
from otel_rl.trace.memory import tracing

ATTEMPT_KEY, JOINED_KEY = "otel_rl/attempt/{}", "otel_rl/joined/{}"
"""Keys of the store; they end with how often the rank has joined a process group through it, and with the rank."""
ATTEMPT_LIMIT_S = 5.0


def _process_group_begins(*_: object) -> None:
    buffers.begin()


def _process_group_failed(*_: object) -> None:
    buffers.give_up()


def _process_group_made(*_: object) -> None:
    buffers.end()
    join_process_group()


def join_process_group() -> None:
    """Learn rank and attempt from the default process group: rank 0 puts the attempt into its store, others read it.

    Once per process group, on the thread that makes it; at most 5 s where rank 0 is not instrumented yet, and then once
    more when the first step begins: most programs have called a collective until then, and rank 0 with them.

    A store may outlive its processes: that of torchrun's agent does, where a restart finds no new rendezvous. All ranks
    join equally often, so this number distinguishes their attempt from former ones.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return
    comm.worlds += 1
    layout.renew()  # ranks stand elsewhere in another world
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if join_parent() and tracing.inherited is not None:
        join_worker(rank, world_size)
        return
    if world_size < 2:
        state.identify(rank=rank, world_size=world_size)
        return
    identifying.may_meet = bool(state.config.attempt_id)
    state.identify(rank=rank, world_size=world_size)
    store = dist.distributed_c10d._get_default_store()
    key = ATTEMPT_KEY.format(store.add(JOINED_KEY.format(rank), 1))
    if rank == 0:
        if not state.identity.known:
            know_attempt()
        share_actions(store, rank)
        store.set(key, f"{state.identity.attempt_id} {state.identity.run_id}")
        return
    deadline = monotonic_ns() + int(ATTEMPT_LIMIT_S * 1e9)
    while not _read_attempt(store, key):
        if monotonic_ns() > deadline:
            identifying.ask_again = lambda: _read_attempt(store, key)
            say(
                "otel_rl: rank 0 did not share its attempt within %.0f s; check that otel_rl is on there. "
                "Rank %d asks again when its first step begins",
                ATTEMPT_LIMIT_S,
                rank,
            )
            return
        threading.Event().wait(0.02)


def _read_attempt(store: Any, key: str) -> bool:
    """Learn the attempt from the store; return whether rank 0 has put it there."""
    if not store.check([key]):
        return False
    attempt_id, _, run_id = store.get(key).decode().partition(" ")
    know_attempt(attempt_id, run_id)
    share_actions(store, state.identity.rank)
    return True


def _mesh_made(args: Args, kwargs: Kwargs, result: Any) -> None:
    """Read where the mesh puts this rank; slices of one are meshes, too, and after the first step nothing counts."""
    import torch.distributed as dist

    if not identifying.frozen and dist.is_initialized():
        layout.read_mesh(args[0], dist.get_world_size())


def _join_existing(module: ModuleType) -> Callable[[], object]:
    if getattr(module, "GroupMember", None) is not None and module.GroupMember.WORLD is not None:
        join_process_group()
    return lambda: None


PROCESS_GROUP = (
    *(
        CallbackHook(
            target=f"{module}:init_process_group",
            before=_process_group_begins,
            after=_process_group_made,
            failed=_process_group_failed,
        )
        for module in ("torch.distributed.distributed_c10d", "torch.distributed")
    ),
    ReturnHook(target="torch.distributed.device_mesh:DeviceMesh.__init__", after=_mesh_made, is_constructor=True),
)
JOIN = Attachment("torch.distributed.distributed_c10d", _join_existing)
