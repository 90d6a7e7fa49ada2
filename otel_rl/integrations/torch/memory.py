"""Peaks of a device's memory that stay true for the host while ``OTEL_RL_MEMORY_PEAK=exact`` resets them.

Every reader and every reset of torch (``torch.cuda.max_memory_allocated``, ``memory_stats``, ``memory_summary``,
``reset_peak_memory_stats``, the same of ``torch.accelerator`` and ``torch.npu``) ends in one of these functions of C++
and looks it up when it is called. Source: torch 2.13 to 2.15, ``torch/cuda/memory.py`` and that of ``accelerator``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from otel_rl.hooks.install import Hook, Patches
from otel_rl.probes.peaks import Peaks
from otel_rl.process.state import state

NAMES = {
    "cuda": ("torch._C", "_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
    "npu": ("torch_npu._C", "_npu_memoryStats", "_npu_resetPeakMemoryStats"),
}
"""By kind of device: where its functions are, the one that reads the allocator, the one that resets its peaks."""
ACCELERATOR = ("torch._C", "_accelerator_getDeviceStats", "_accelerator_resetPeakStats")


def exact_peaks(kind: str, device: Any) -> tuple[Peaks | None, Callable[[], object]]:
    """Let peaks be reset without the host seeing it, if the user wants that.

    Args:
        kind: ``cuda`` or ``npu``.
        device: the module of that name.

    Returns:
        The peaks, None where they are not wanted or torch has not got the functions; and what undoes all of it.
    """
    module, read, reset = NAMES[kind]
    owner = sys.modules.get(module)
    if state.config.memory_peak != "exact" or not (hasattr(owner, read) and hasattr(owner, reset)):
        return None, lambda: None
    peaks = Peaks(getattr(owner, read), getattr(owner, reset), device.current_device)

    def show(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        peaks.show(args[0], result)

    def before_reset(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        peaks.before_reset(args[0])

    def after_reset(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        peaks.after_reset(args[0])

    patches = Patches()
    for place, reads, resets in (NAMES[kind], ACCELERATOR):
        patches.install(Hook(target=f"{place}:{reads}", after=show, optional=True))
        patches.install(Hook(target=f"{place}:{resets}", before=before_reset, after=after_reset, optional=True))
    return peaks, patches.undo
