"""The exceptions of a run: those that ended steps, set-up or tear-down, and those of calls and rollouts beside them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_rl import vocabulary as v
from otel_rl.journal.read import SpanView
from otel_rl.report.data.ranks import Rank, StepKey
from otel_rl.report.data.report import Failure, Follows
from otel_rl.report.findings.causes import INTERRUPTS, called_error, follows
from otel_rl.report.read.single_controller.guest_steps import DRIVER, is_driver
from otel_rl.report.read.span_attributes import ERROR, rank_of
from otel_rl.runs.spans import integer, is_container, text

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


def step_failure(container: SpanView, iteration: int, spans: Sequence[SpanView]) -> Failure:
    """Return the exception that ended a step, with the stage that began last of those that it passed through.

    Args:
        container: of the step.
        iteration: the number of the step.
        spans: what its process did in it.
    """
    own, failed = text(container.attributes, v.ERROR_TYPE), [span for span in spans if span.status_code == ERROR]
    parents, went_on_ns = {span.span_id: span.parent_id for span in spans}, _went_on_ns(spans)
    stage, error, kind = _innermost(
        span
        for span in failed
        if text(span.attributes, v.ERROR_TYPE) == own or not _was_caught(span, parents, went_on_ns)
    )
    error = error or own
    return Failure(
        attempt=text(container.resource, v.ATTEMPT_ID),
        rank=rank_of(container.resource),
        loop=text(container.attributes, v.LOOP_NAME),
        step=iteration,
        stage=stage,
        error=error,
        follows=kind,
    )


def _went_on_ns(spans: Iterable[SpanView]) -> dict[bytes, int]:
    """Return by stage when the last one in it began, without those that were given up."""
    found: dict[bytes, int] = {}
    for span in spans:
        if text(span.attributes, v.ERROR_TYPE) not in STOPPED:
            found[span.parent_id] = max(found.get(span.parent_id, 0), span.start_ns)
    return found


def _was_caught(failed: SpanView, parents: Mapping[bytes, bytes], went_on_ns: Mapping[bytes, int]) -> bool:
    """Return whether a stage around a failed one went on to another stage."""
    around, parent = set[bytes](), failed.parent_id
    while parent in parents and parent not in around:
        if went_on_ns.get(parent, 0) >= failed.end_ns:
            return True
        around.add(parent)
        parent = parents[parent]
    return False


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


class CalledFailures(NamedTuple):
    """The failures of calls, and of rollouts in drivers."""

    failures: list[tuple[int, Failure]]
    """Each with its time."""
    survived: set[Failure]
    """Failures after which the driver's step ended well, or failed with another exception."""
    passed_on: set[Failure]
    """Failures that reached the stage in which a driver's step ended, and have another exception there."""
    heard: dict[Failure, Follows]
    """What a failure of a driver's step followed, where only the called processes tell."""


def failures_of_calls(
    errors: Sequence[SpanView],
    failed: Iterable[tuple[int, Failure]],
    drivers: Mapping[bytes, SpanView],
    step_of: Callable[[SpanView], StepKey | None],
    guests: Container[tuple[str, Rank]],
    called_ns: Mapping[bytes, int],
) -> CalledFailures:
    """Return the failures of calls and of rollouts in drivers.

    A rollout in a failed step of a driver is left out: the failure of the step tells of it.

    Args:
        errors: failed spans of called processes and drivers.
        failed: failures of steps, each with its time.
        drivers: the containers of drivers, by trace.
        step_of: the step in which a span ended.
        guests: the ranks that a driver calls, by attempt. They work together, so all that fail in one call count.
        called_ns: when the last call of each failed stage of a driver began. A driver that calls after a failure has
            survived it.
    """
    well = {trace: _step(one) for trace, one in drivers.items() if _is_well(one)}
    told = [
        span
        for span in errors
        if not is_driver(span) or span.trace_id not in drivers or (span.trace_id in well and span.name in ROLLED_OUT)
    ]
    called, steps = list(_failures_of_called(told, step_of)), set(well.values())
    ended = {(one.attempt, one.loop, one.step): one for _, one in failed if one.rank.role == DRIVER}
    known = {span.span_id: span for span in errors}
    survived, passed_on, heard = set[Failure](), set[Failure](), dict[Failure, Follows]()
    for span, one in called:
        key = one.attempt, one.loop, one.step
        end, (call, caller) = ended.get(key), _caller(span, known)
        if key in steps or (one.rank.role == DRIVER and end is not None and end.error != one.error):
            survived.add(one)
        elif end is not None and caller is not None and _is_end(caller, end):
            is_exit = end.follows == "loss" and one.error == "SystemExit"
            is_unnamed = not end.follows and called_ns.get(caller.span_id, 0) < call.end_ns
            if is_unnamed:
                heard[end] = "failure"
            elif one.follows == "loss" and called_error(end.error) == one.error:
                heard[end] = "loss"
            if is_unnamed or is_exit or (one.attempt, one.rank) in guests:
                passed_on.add(one)
    return CalledFailures([(span.end_ns, one) for span, one in called], survived, passed_on, heard)


def _caller(span: SpanView, failed: Mapping[bytes, SpanView]) -> tuple[SpanView, SpanView | None]:
    """Return the call that an exception ended, and the stage of a driver that it reached; None if it was caught."""
    seen = set[bytes]()
    while (parent := failed.get(span.parent_id)) is not None and parent.span_id not in seen:
        if is_driver(parent):
            return span, parent
        seen.add(parent.span_id)
        span = parent
    return span, None


def _is_end(stage: SpanView, end: Failure) -> bool:
    """Return whether a driver's step ended in a stage, and not since somebody asked it to."""
    return (stage.name, text(stage.attributes, v.ERROR_TYPE)) == (end.stage, end.error) and end.error not in INTERRUPTS


def _step(container: SpanView) -> StepKey:
    """Return the step of a container by its attributes: the time of its end may belong to the next step."""
    said = container.attributes
    return text(container.resource, v.ATTEMPT_ID), text(said, v.LOOP_NAME), integer(said, v.ITERATION)


def _is_well(container: SpanView) -> bool:
    """Return whether it is that of a step that came to its end."""
    said = container.attributes
    return container.status_code != ERROR and v.ITERATION in said and v.TRUNCATED not in said


def _failures_of_called(
    errors: Sequence[SpanView], step_of: Callable[[SpanView], StepKey | None]
) -> Iterator[tuple[SpanView, Failure]]:
    """Yield each with its span: the innermost stage of each exception, those that are alike once in a step."""
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
            yield span, found


def without_passed_on(failed: Iterable[tuple[int, Failure]], calls: set[Failure]) -> Iterator[tuple[int, Failure]]:
    """Leave out what ended a step because a rollout of the same process had failed: that one says where."""
    known = {(one.attempt, one.rank, one.loop, one.step, one.error) for one in calls}
    for time_ns, one in failed:
        if (one.attempt, one.rank, one.loop, one.step, one.error) not in known:
            yield time_ns, one
