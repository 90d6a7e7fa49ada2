"""Memory that ran out: who held what."""

from __future__ import annotations

from otel_rl import vocabulary
from otel_rl.complete import memory_attributes
from otel_rl.records import Log
from otel_rl.runtime import state


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or device memory ran out; torch's class is known by name, so that torch need not be loaded."""
    return isinstance(error, MemoryError) or any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)


def record_exhausted() -> None:
    """Log, for every open stage, what it held and what it was working on when memory ran out."""
    reading = state.read_memory()
    for opened in tuple(state.open):
        values = {**(opened.attributes or {}), **memory_attributes(opened.before, reading)}
        values[vocabulary.STAGE] = opened.name
        state.add(Log(vocabulary.OUT_OF_MEMORY, state.now(), values, opened.name, 17, opened.trace_id, opened.span_id))
