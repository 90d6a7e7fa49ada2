"""Spans below those of other processes: how a carrier is made of a stage, and used in the process that it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from otel_rl.clock import monotonic_ns
from otel_rl.guard import guard
from otel_rl.process.carrier import IN_USE, Carrier, carrying
from otel_rl.process.state import Trace, state
from otel_rl.trace.attempt import know_attempt
from otel_rl.trace.guest import begin_call, end_call, guest
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, current_stage
from otel_rl.vocabulary import MODE, RANK_SPAN

MAX_TRACES = 1024
"""Traces of other processes that are remembered: an asynchronous worker serves several steps and many rollouts."""


def install_carriers() -> None:
    """Make and use carriers while this process records."""
    carrying.current, carrying.use = current_carrier, in_carrier
    tracing.caller = caller_container


def current_carrier() -> Carrier | None:
    """Return the carrier of the innermost stage, else of the container, else the one in use."""
    stage, used = current_stage(), IN_USE.get()
    carrier = None if stage is None else carrier_of(stage)
    if carrier is None or used is None:
        return carrier or used
    if used.attempt_id and used.trace_id == carrier.trace_id:  # it may be another run's, handed on
        return replace(carrier, run_id=used.run_id, attempt_id=used.attempt_id)
    return carrier


def carrier_of(stage: Stage) -> Carrier | None:
    """Return what names a stage to other processes; None as long as the attempt is not known."""
    trace, identity = stage.trace, state.identity
    if trace is None or not trace.known or not identity.known:
        return None
    traceparent = f"00-{trace.trace_id:032x}-{stage.span_id:016x}-{trace.sampled:02x}"
    mode = str((stage.attributes or {}).get(MODE, ""))
    began_ns = trace.began + trace.anchor if trace.began else 0
    return Carrier(identity.run_id, identity.attempt_id, identity.role, trace.step, traceparent, mode, began_ns)


@contextmanager
def in_carrier(carrier: Carrier) -> Iterator[None]:
    """Make the carrier's span current, as if it were an open stage of this process."""
    stand_in: Stage | None = None
    with guard("use a carrier"):
        if carrier.attempt_id and state.identity.is_worker and not state.identity.known:
            know_attempt(carrier.attempt_id, carrier.run_id)
        stand_in = stand_in_of(carrier)
        stand_in.make_current()
        begin_call(stand_in, carrier.attempt_id)
        if tracing.phase is not None and state.identity.is_worker and works_for_step():
            setup, tracing.phase = tracing.phase, None
            setup.close(guest.began or monotonic_ns())
    try:
        yield
    finally:
        if stand_in is not None:
            with guard("leave a carrier"):
                end_call(stand_in)
                stand_in.leave()


def stand_in_of(carrier: Carrier) -> Stage:
    """Return a stage that stands for the carrier's span; it is never recorded itself."""
    trace = tracing.carried.get(carrier.trace_id) or _own_trace(carrier.trace_id)
    if trace is None:
        state.follow_clock()
        trace = Trace(carrier.trace_id, state.clock.anchor, sampled=carrier.is_sampled, step=carrier.step)
        trace.is_carried = True
        trace.began = carrier.began_ns - trace.anchor if carrier.began_ns else monotonic_ns()
        tracing.carried[carrier.trace_id] = trace
        while len(tracing.carried) > MAX_TRACES:
            tracing.carried.pop(next(iter(tracing.carried)), None)
        if trace.is_step:
            state.freeze()
    stand_in = Stage("")
    stand_in.trace, stand_in.span_id = trace, carrier.span_id
    return stand_in


def caller_container() -> Stage | None:
    """Return a container that stands for the carrier in use: a process that is forked there works for the same step."""
    used = IN_USE.get()
    with guard("find the carrier of a forked process"):
        if used is not None and state.on and state.identity.known:
            container = stand_in_of(used)
            container.name = f"{RANK_SPAN} {state.identity.rank}"
            return container
    return None


def _own_trace(trace_id: int) -> Trace | None:
    """Return the trace of an open step of this process: a carrier may go to one of its own threads."""
    opened = (one for one in tracing.open.copy() if isinstance(one, Stage))
    return next((stage.trace for stage in opened if stage.trace_id == trace_id), None)


def works_for_step() -> bool:
    """Return whether this process or task works inside a step, or a rollout, of another one: it makes none then."""
    used = IN_USE.get()
    if used is not None and used.attempt_id and not used.step:  # a rollout that is a trace of its own
        return True
    trace = tracing.inherited if used is None else tracing.carried.get(used.trace_id)
    return trace is not None and trace.is_step
