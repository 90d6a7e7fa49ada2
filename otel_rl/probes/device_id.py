"""Which NVIDIA device this process uses, by the id under which the sidecar samples it: NVML's UUID."""

from __future__ import annotations

import os
from threading import get_ident
from typing import Any

from otel_rl.guard import attempt
from otel_rl.probes.memory import probes
from otel_rl.process.state import state


def nvidia_id(cuda: Any) -> str | None:
    """Return the id of the device that this process uses; None where it uses none, or if it cannot know which.

    Nothing is initialised and nothing waited for: torch keeps what the driver says of a device. Of several devices the
    one counts that is current on the thread of the steps; a thread of ours begins on device 0, whichever is used.

    Args:
        cuda: ``torch.cuda`` of torch 2.4 to 2.15; its UUIDs lack NVML's prefix.
    """
    index = _in_use(cuda) if cuda.is_initialized() else None
    if index is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    named = visible[index].strip() if index < len(visible) else ""
    if named.startswith("MIG-"):
        return named
    properties = cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None or " MIG " in properties.name else f"GPU-{uuid}"  # a part has the whole one's UUID


def learn_device() -> None:
    """Let the identity say which device this process uses, also once the resource is final: models load long."""
    found = attempt("find", "the device of this rank", probes.find_device)
    if found:
        state.know_device(found)


def _in_use(cuda: Any) -> int | None:
    here: int | None = cuda.current_device() if state.step_thread == get_ident() else None
    if probes.has_context is None:
        return here
    used = [index for index in range(cuda.device_count()) if probes.has_context(index)]
    if here in used:
        return here
    return used[0] if len(used) == 1 else None
