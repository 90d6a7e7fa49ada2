"""Stages that no function holds: they last from the end of one call to the begin of another, on one thread."""

from __future__ import annotations

from time import monotonic_ns

from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.stage import Stage


def begin_between(name: str, attributes: dict[str, Value] | None = None) -> None:
    """Open a stage that lasts until ``end_between``; one that is still open ends here."""
    training = state.training
    if training.between is not None:
        end_between()
    if state.container is not None:
        training.between = Stage(name, attributes, coarse=True)
        training.between.open()


def end_between(error: BaseException | None = None) -> None:
    """End the open stage, if there is one."""
    between = state.training.between
    if between is not None:
        end = monotonic_ns()
        state.training.between = None
        if error is not None:
            between.fail(error)
        between.close(end)
