"""The exceptions of a run: those that ended steps, set-up or tear-down, and those of processes that a driver calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from otel_rl import vocabulary as v
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import Failure, Follows
from otel_rl.report.findings.causes import follows
from otel_rl.report.read.span_attributes import ERROR, rank_of
from otel_rl.runs.spans import is_container, text

STOPPED = ("CancelledError", "GeneratorExit")
"""Rollouts that are given up, on purpose or since another one has failed."""
ROLLED_OUT = (v.SAMPLE_GROUP, v.TRAJECTORY, v.SAMPLE_TURN, v.REWARD)
"""Stages of rollouts, which a driver may make in its own process."""


class PhaseFailure(NamedTuple):
    """An exception after which a process did nothing more in its set-up or tear-down."""

    end_ns: int
    attempt: str
    rank: Rank
    phase: str
    """`set-up` or `tear-down`."""
    stage: str
    error: str
    follows: Follows
    is_end: bool
    """It ended the whole phase, as far as that was recorded: a process that is killed meanwhile records no end."""


def step_failure(container: SpanView, iteration: int, spans: Iterable[SpanView]) -> Failure:
    """Return the exception that ended a step, with the stage that began last of those that it passed through."""
    stage, error, kind = _innermost(span for span in spans if span.status_code == ERROR)
    error = error or text(container.attributes, v.ERROR_TYPE)
    return Failure(
        attempt=text(container.resource, v.ATTEMPT_ID),
        rank=rank_of(container.resource),
        loop=text(container.attributes, v.LOOP_NAME),
        step=iteration,
        stage=stage,
        error=error,
        follows=kind,
    )


def _innermost(failed: Iterable[SpanView]) -> tuple[str, str, Follows]:
    """Return the innermost stage of an exception, its class, and what it followed."""
    inward = sorted(failed, key=lambda span: (-span.start_ns, span.end_ns))
    inward = [span for span in inward if text(span.attributes, v.ERROR_TYPE) not in STOPPED] or inward
    stage = next((span for span in inward if span.name != v.COMM), inward[0])
    error = text(stage.attributes, v.ERROR_TYPE)
    collectives = [span for span in inward if span.name == v.COMM and span.start_ns >= stage.start_ns]
    is_collective = any(text(span.attributes, v.ERROR_TYPE) == error for span in collectives)  # else it was caught
    is_collective |= stage.attributes.get(v.COMM_HIDDEN) is True
    return stage.name, error, follows(error, is_collective=is_collective)


def phase_failure(phase: str, spans: Sequence[SpanView]) -> PhaseFailure | None:
    """Return the exception in what a process recorded in a phase; None if there is none, or it went on after it."""
    failed = [span for span in spans if span.status_code == ERROR]
    if not failed:
        return None
    last = max(failed, key=lambda span: (span.end_ns, span.start_ns))
    is_end = any(is_container(span.name) or span.name in (v.SETUP, v.TEARDOWN) for span in failed)
    begun = max((span.start_ns for span in spans if span.status_code != ERROR), default=0)
    if begun >= last.end_ns and not is_end:
        return None
    stage, error, kind = _innermost(span for span in failed if span.end_ns >= last.start_ns)
    return PhaseFailure(
        end_ns=last.end_ns,
        attempt=text(last.resource, v.ATTEMPT_ID),
        rank=rank_of(last.resource),
        phase="tear-down" if phase == v.TEARDOWN else "set-up",
        stage=stage,
        error=error or "an exception",
        follows=kind,
        is_end=is_end,
    )


def failures_of_called(
    errors: Sequence[SpanView], step_of: Callable[[SpanView], StepKey | None]
) -> Iterator[tuple[int, Failure]]:
    """Return when each began: the innermost stage of each exception, those that are alike once in a step."""
    collectives = {span.parent_id for span in errors if span.name == v.COMM}
    stages = sorted((span for span in errors if span.name != v.COMM), key=lambda span: span.end_ns)
    around = {span.parent_id for span in stages}
    seen: set[Failure] = set()
    for span in stages:
        error, step = text(span.attributes, v.ERROR_TYPE), step_of(span)
        if span.span_id in around or step is None or error in STOPPED:
            continue
        attempt, loop, number = step
        found = Failure(
            attempt=attempt,
            rank=rank_of(span.resource),
            loop=loop,
            step=number,
            stage=span.name,
            error=error,
            follows=follows(error, is_collective=span.span_id in collectives),
        )
        if found not in seen:
            seen.add(found)
            yield span.end_ns, found
