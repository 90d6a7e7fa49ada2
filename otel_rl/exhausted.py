"""Memory that ran out: who held what."""

from __future__ import annotations

from typing import Any

from otel_rl import vocabulary
from otel_rl.complete import memory_attributes
from otel_rl.guard import guard
from otel_rl.records import Log
from otel_rl.runtime import state


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or device memory ran out; torch's class is known by name, so that torch need not be loaded."""
    return isinstance(error, MemoryError) or any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)


def record_exhausted() -> None:
    """Log, for every open stage, what it held and what it was working on when memory ran out."""
    reading = state.read_memory()
    for opened in tuple(state.open):
        if hasattr(opened, "before"):  # else a collective: it holds nothing; neither class can be imported here
            with guard("say what a stage held"):
                _record(opened, reading)


def _record(stage: Any, reading: Any) -> None:
    values = {**(stage.attributes or {}), **memory_attributes(stage.before, reading)}
    values[vocabulary.STAGE] = stage.name
    state.add(Log(vocabulary.OUT_OF_MEMORY, state.now(), values, stage.name, 17, stage.trace_id, stage.span_id))
