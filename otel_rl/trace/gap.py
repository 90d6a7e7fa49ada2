"""Stages that no function holds: they last from the end of one call to the begin of another, on one thread."""

from __future__ import annotations

from otel_rl.clock import monotonic_ns
from otel_rl.records import Value
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost


def begin_between(name: str, attributes: dict[str, Value] | None = None) -> None:
    """Open a stage that lasts until ``end_between``; one that is still open ends here."""
    if tracing.between is not None:
        end_between()
    if tracing.container is not None:
        tracing.around = innermost()
        tracing.between = Stage(name, attributes, coarse=True)
        tracing.between.open()


def end_between(error: BaseException | None = None) -> None:
    """End the open stage, if there is one; where an exception has ended what it is inside, it ended with that."""
    between, tracing.between = tracing.between, None
    around, tracing.around = tracing.around, None
    if between is not None:
        end = monotonic_ns()
        if around is not None and around.ended:
            end, between.token = around.ended, None  # what it is inside would be current again
        if error is not None:
            between.fail(error)
        between.close(end)
