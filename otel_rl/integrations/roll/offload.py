"""How ranks of ROLL load and offload what a call needs, and the memory around it, with ROLL's debug mode on or off.

Source: ROLL 0.3.0, ``utils/context_managers.py`` (``state_offload_manger``): timers ``<where>_onload``, ``_execute``
and ``_offload``, one after the other, where ``<where>`` is ``actor_train/train_step`` and the like. In its debug mode
ROLL logs times and memory under the names that are used here, as means over ranks; here each rank records its own, in
ROLL's units: s and GiB. ROLL resets the device's peaks at the begin of each; this resets none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.metrics.naming import series_of
from otel_rl.probes.memory import Device, host, probes
from otel_rl.process.state import state
from otel_rl.records import Point
from otel_rl.trace.stage import Stage

ONLOAD, EXECUTE, OFFLOAD = "onload", "execute", "offload"
OPERATIONS: Final = {ONLOAD: "load_states", OFFLOAD: "offload_states"}
BEFORE: Final = {ONLOAD: "start/offload", OFFLOAD: "end/onload"}
AFTER: Final = {ONLOAD: "start/onload", OFFLOAD: "end/offload"}
"""The moment at which a timer begins and ends, as ROLL names it."""
GIB: Final = 1 << 30


def place_of(name: str) -> tuple[str, str] | None:
    """Split the name of a timer into where it is and what it times; None for another timer."""
    where, _, part = name.rpartition("_")
    return (where, part) if "/" in where and part in {ONLOAD, EXECUTE, OFFLOAD} else None


def begin(where: str, part: str) -> Stage | None:
    """Record the memory before, and return the stage of loading or offloading."""
    if part in BEFORE:
        _record(_memory(where, BEFORE[part], has_share=part == OFFLOAD))
    operation = OPERATIONS.get(part)
    return Stage(vocabulary.SYNC, {vocabulary.SYNC_OPERATION: operation}, coarse=True) if operation else None


def end(where: str, part: str, seconds: float) -> None:
    """Record how long it took, and the memory after it."""
    _record([(f"time/{where}/{part}", seconds)])
    if part in AFTER:
        _record(_memory(where, AFTER[part]))
        virtual, resident = host(probes.read_memory()[0])
        moment = AFTER[part].partition("/")[0]
        if resident:
            cpu = f"memory/cpu/{where}/{moment}"
            _record([(f"{cpu}/rss", resident / GIB), (f"{cpu}/vms", virtual / GIB)])


def _memory(where: str, moment: str, *, has_share: bool = False) -> Iterator[tuple[str, float]]:
    found: Device | None = None if probes.device is None else probes.device.read()
    if found is None:
        return
    numbers = {
        "allocated": found.allocated,
        "reserved": found.reserved,
        "max_allocated": found.allocated_peak,
        "max_reserved": found.reserved_peak,
    }
    for name, size in numbers.items():
        yield f"memory/{where}/{moment}/{name}/{found.device}", size / GIB
    total = _total(found.device) if has_share else 0
    if total:
        for name in ("max_allocated", "max_reserved"):
            yield f"memory/{where}/{moment}/{name}_frac/{found.device}", numbers[name] / total


def _total(device: int) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory) if torch.cuda.is_available() else 0


def _record(numbers: Any) -> None:
    time_ns = state.now()
    for name, number in numbers:
        series = series_of(name, vocabulary.ROLL)
        if series is not None:
            state.add(Point(series[0], number, time_ns, series[1]))
