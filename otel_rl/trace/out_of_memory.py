"""Memory that ran out: which stage had allocated what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from otel_rl import vocabulary
from otel_rl.guard import guard
from otel_rl.probes import deferred
from otel_rl.probes.memory import read_now
from otel_rl.probes.memory_numbers import memory_attributes
from otel_rl.process.state import state
from otel_rl.records import Attributes, Deferred, Log, PendingAttributes
from otel_rl.trace.memory import tracing
from otel_rl.trace.training import training

WORK: Final = (
    vocabulary.TRAIN_BATCH_SIZE,
    vocabulary.TOKENS,
    vocabulary.TOKENS_PROMPT,
    vocabulary.TOKENS_RESPONSE,
    vocabulary.TOKENS_ENVIRONMENT,
    vocabulary.TOKENS_PADDING,
)
"""What a stage worked on; tokens may have been on their way, and a backward says nothing of them by itself."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether host or device memory ran out; torch's class is known by name, so torch need not be loaded."""
    return isinstance(error, MemoryError) or any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__)


def record_exhausted() -> None:
    """Log, for every open stage, what it had allocated and worked on when memory ran out."""
    with guard("take what has come from a device"):
        deferred.resolve()
    readings: dict[int | None, Any] = {}
    for opened in tracing.open.copy():
        if hasattr(opened, "before"):  # else a collective: it allocates nothing; neither class can be imported here
            with guard("say what a stage had allocated"):
                begin = opened.before and opened.before[1]
                index = begin and begin.device  # that of its begin: on this thread another one may be current
                if index not in readings:
                    readings[index] = read_now(index)
                _record(opened, readings[index])


def _record(stage: Any, reading: Any) -> None:
    values = {**(stage.attributes or {}), **memory_attributes(stage.before, reading)}
    values[vocabulary.STAGE] = stage.name
    log = Log(vocabulary.OUT_OF_MEMORY, state.now(), values, stage.name, 17, stage.trace_id, stage.span_id)
    work = training.forward if stage.name == vocabulary.BACKWARD else stage.attributes
    state.add(Deferred(_with_work, (log, work)) if isinstance(work, PendingAttributes) else log)


def _with_work(log: Log, work: Attributes) -> Iterator[Log]:
    yield replace(log, attributes={**{key: work[key] for key in WORK if key in work}, **log.attributes})
