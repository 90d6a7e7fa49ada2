"""Exceptions in processes that a driver calls, where they began: their callers fail with them, or go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from otel_rl import vocabulary as v
from otel_rl.journal.read import SpanView
from otel_rl.report.data.report import Failure
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import text

STOPPED = ("CancelledError", "GeneratorExit")
"""Rollouts that are given up on purpose."""
StepKey = tuple[str, str, int]


def failures_of_called(
    errors: Sequence[SpanView], step_of: Callable[[SpanView], StepKey | None]
) -> Iterator[tuple[int, Failure]]:
    """Return when each began: the innermost stage of each exception, those that are alike once in a step."""
    around = {span.parent_id for span in errors}
    seen: set[Failure] = set()
    for span in sorted(errors, key=lambda span: span.end_ns):
        error, step = text(span.attributes, v.ERROR_TYPE), step_of(span)
        if span.span_id in around or step is None or error in STOPPED:
            continue
        attempt, loop, number = step
        rank = rank_of(span.resource)
        found = Failure(attempt=attempt, rank=rank, loop=loop, step=number, stage=span.name, error=error)
        if found not in seen:
            seen.add(found)
            yield span.end_ns, found
