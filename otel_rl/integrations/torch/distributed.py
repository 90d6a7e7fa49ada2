"""PyTorch's collectives, and what waits for them: which functions, and where each has this rank's input.

Runs in every process that imports torch. Source: torch 2.13 to 2.15, ``torch/distributed/distributed_c10d.py`` and
``_functional_collectives.py``. FSDP2 and FSDP1 call these by the name in ``torch.distributed`` (since 2.13 the
``_single`` ones), and what DTensor redistributes goes through the functional ones by the name in their module, clipping
by norm included. ``Work.wait`` and ``wait_tensor`` wait for what was launched: the exposed part of it.

Not recorded: DDP's reducer (``ddp_wait.py`` measures its wait), ``torch.ops._c10d_functional`` called directly, the
``_autograd`` variants, ``isend`` and ``irecv`` (torch compares them by identity; their waits are recorded), waits for
the futures of collectives, and what runs inside compiled regions.
"""

from __future__ import annotations

from otel_rl import vocabulary
from otel_rl.hooks import CollectiveHook

C10D = "torch.distributed.distributed_c10d"
FUNCTIONAL = "torch.distributed._functional_collectives"

INPUT_POSITION = {
    "all_reduce": 0, "reduce": 0, "broadcast": 0, "broadcast_object_list": 0, "barrier": 0, "monitored_barrier": 0,
    "all_gather": 1, "all_gather_object": 1, "all_gather_into_tensor": 1, "all_gather_single": 1,
    "_all_gather_base": 1, "all_gather_coalesced": 1, "all_reduce_coalesced": 0,
    "reduce_scatter": 1, "reduce_scatter_tensor": 1, "reduce_scatter_single": 1, "_reduce_scatter_base": 1,
    "all_to_all": 1, "all_to_all_single": 1, "gather": 0, "gather_object": 0, "scatter": 1, "scatter_object_list": 1,
    "send": 0, "recv": 0, "send_object_list": 0, "recv_object_list": 0, "_broadcast_coalesced": 1,
}  # fmt: skip
"""Collectives and the position of this rank's input among their arguments; each version lacks some.

``_broadcast_coalesced`` is what DDP sends buffers with in its forward.
"""

FUNCTIONAL_NAMES = (
    "broadcast", "all_reduce", "all_reduce_coalesced", "all_gather_single", "all_gather_tensor",
    "all_gather_single_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_single", "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "all_to_all_single", "wait_tensor",
    "wait_tensors",
)  # fmt: skip

COLLECTIVES = (
    *(
        CollectiveHook(target=f"{module}:{name}", position=position, optional=True)
        for module in (C10D, "torch.distributed")
        for name, position in INPUT_POSITION.items()
    ),
    *(  # ``new_subgroups`` calls these, and device meshes by the names in their module
        CollectiveHook(target=f"{module}:{name}", optional=True)
        for module in (C10D, "torch.distributed", "torch.distributed.device_mesh")
        for name in vocabulary.MAKING_A_GROUP
    ),
    CollectiveHook(target=f"{C10D}:Work.wait", optional=True),
    *(CollectiveHook(target=f"{FUNCTIONAL}:{name}", optional=True) for name in FUNCTIONAL_NAMES),
)
