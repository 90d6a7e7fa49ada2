"""Steps of another process in one that holds a rank and only gets calls: it has no loop, and is a guest in the step.

A guest step begins with the first call of a later step of the driver's, at the time at which the driver began that one,
but not before this process was free. It ends where the next one begins, or tear-down, or with the last call if the
process exits. So the steps of a rank tile, and are those of the driver; a step that has no call here is part of the
next one that has. Where the driver's begin is unknown, a step begins with its first call.

Between two calls the rank waits for its controller. Such a wait is an ``rl.idle`` below the driver's root, and in two
traces where a step ends inside it. A process that is killed leaves its last wait open in the journal. The numbers of a
step are recorded when it ends. So those of the last step are missing where the process is killed after it; the spans
are there.

Cost: 0.5 us a call, and 0.5 us a wait; 8 us the first call of a step.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Final, NamedTuple

from otel_rl import ids, vocabulary
from otel_rl.clock import monotonic_ns, thread_time_ns
from otel_rl.ids import random_bits
from otel_rl.probes.memory import Reading, probes
from otel_rl.process.identity import RANK, identifying
from otel_rl.process.memory import Memory
from otel_rl.process.state import Trace, state
from otel_rl.process.status import status
from otel_rl.records import Point, Value
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.trace.step_edges import CHECKED_STEPS, prepare_step, step_points
from otel_rl.trace.throughput import Throughput

LEAST_WAIT_NS: Final = 1_000_000
"""Calls that follow each other faster have no wait between them."""
LISTED_NS: Final = 1_000_000_000
"""A wait is listed among the open stages once it has lasted this time."""


class GuestStep(NamedTuple):
    """A step that has ended; times are monotonic, ns."""

    container: Stage
    """Stands for the driver's root."""
    trace: Trace
    began: int
    ended: int
    cpu_ns: int
    """CPU time of the thread that its first call came on; below 0 if the next step's came on another one."""
    memory: Reading
    usage: tuple[int, int] | None

    def points(self) -> list[Point]:
        """Make its points, as those of a loop's steps."""
        times = self.began, self.ended, self.trace.anchor
        points = step_points(*times, self.cpu_ns, self.memory, self.usage)
        return [*points, *guest.throughput.end_guest_step(*times)]


@dataclass(eq=False)
class Guest(Memory):
    """The step that this process is a guest in."""

    trace: Trace | None = None
    """The last one of the driver's that a call came from: of a step, set-up or tear-down."""
    container: Stage | None = None
    """Stands for the root of that step, or of tear-down."""
    has_rank: bool = False
    """Whether it has had a step."""
    began: int = 0
    """When the open step began (monotonic, ns); 0 where none is open."""
    cpu: tuple[int, int] = 0, 0
    """The thread of its first call, and the CPU time that this thread had used."""
    calls: set[Stage] = field(default_factory=set)
    """What stands for the callers of the calls that are open."""
    left: int = 0
    """When the last call ended (monotonic, ns)."""
    first_wait: int = field(default_factory=partial(random_bits, 64))
    """The ids of waits are this one plus the time at which each began: two threads may have to know the same."""
    listed: Stage | None = None
    """The wait that is listed among the open stages; used by the flusher only."""
    checks_left: int = CHECKED_STEPS
    throughput: Throughput = field(default_factory=Throughput)
    """Counts what an integration says that is trained; used by the flusher only."""


guest = Guest.keep("guest")


def begin_call(call: Stage, attempt_id: str) -> None:
    """Count a call that has begun, and the wait that it ends; the first one of a later step begins that step.

    Args:
        call: what stands for the caller's span.
        attempt_id: of the caller.
    """
    now, trace = monotonic_ns(), call.trace
    if trace is not None and trace is not guest.trace and _is_later(trace):
        _arrive(trace, attempt_id, now)
    elif guest.began and not guest.calls:
        _wait(_free_since(), now)
    guest.calls.add(call)


def end_call(call: Stage) -> None:
    """Count a call that has ended."""
    guest.calls.discard(call)
    if not guest.calls:
        guest.left = monotonic_ns()


def end_guest_step() -> None:
    """End the open step with its last call, if no call is open: the process exits."""
    if not guest.calls:
        _end(_free_since())


def open_waits() -> list[Stage]:
    """Return the wait for the controller that has been open for a second, if any; used by the flusher only."""
    began, container, listed = _free_since(), guest.container, guest.listed
    is_open = guest.began and not guest.calls and container is not None and monotonic_ns() - began >= LISTED_NS
    if listed is not None and not (is_open and listed.began == began):
        listed.ended, guest.listed = listed.began, None  # if it was one, its span has been recorded under the same id
    if is_open and container is not None and guest.listed is None:
        guest.listed = _make_wait(container, began)
    return [] if guest.listed is None else [guest.listed]


def _is_later(trace: Trace) -> bool:
    last = guest.trace
    is_later = last is None or trace.began > last.began  # calls of an earlier step may come late
    return is_later and trace.is_carried and bool(trace.step) and state.identity.kind == "worker"


def _arrive(trace: Trace, attempt_id: str, now: int) -> None:
    """End the step before where this one began in the driver, and be a guest in this one."""
    guest.trace = trace
    status.show_step(int(trace.step.rpartition(" ")[2]) if trace.is_step else None)
    since = _free_since()
    edge = min(max(trace.began, since), now)
    if guest.began:
        _wait(since, edge)
        _end(edge)
    if trace.is_step and _has_rank():
        _stand_below(trace, attempt_id)
        guest.has_rank, guest.began = True, edge
        _wait(edge, now)
        state.own_step()
        guest.checks_left = prepare_step(guest.checks_left)
        guest.cpu = get_ident(), thread_time_ns()
    elif guest.has_rank:
        _stand_below(trace, attempt_id)


def _has_rank() -> bool:
    """Return whether this is a rank of a world; what it starts itself inherits the launcher's variables."""
    return "world_size" in identifying.learned or (RANK in os.environ and tracing.inherited is None)


def _free_since() -> int:
    return max(guest.left, guest.began, tracing.last_end, state.started_ns)


def _stand_below(trace: Trace, attempt_id: str) -> None:
    """Record below the driver's root what is in no call, and let its trace be that of this process."""
    loop, _, number = trace.step.rpartition(" ")
    said: dict[str, Value] = {vocabulary.ITERATION: int(number)} if trace.is_step else {}
    container = Stage(f"{vocabulary.RANK_SPAN} {state.identity.rank}", said)
    container.trace, container.span_id = trace, ids.root_id(attempt_id, loop, int(number))
    tracing.container = guest.container = container


def _wait(began: int, ended: int) -> None:
    container = guest.container
    if guest.calls or container is None or ended - began < LEAST_WAIT_NS:
        return
    wait = _make_wait(container, began)
    wait.ended = ended
    state.add(wait)


def _make_wait(container: Stage, began: int) -> Stage:
    wait = Stage(vocabulary.IDLE, {vocabulary.IDLE_REASON: "controller"})
    wait.trace, wait.parent_id, wait.began = container.trace, container.span_id, began
    wait.span_id = (guest.first_wait + began) % 2**64 or 1
    return wait


def _end(ended: int) -> None:
    began, guest.began = guest.began, 0
    container = guest.container
    if not began or container is None or container.trace is None:
        return
    thread, cpu_ns = guest.cpu
    device = probes.device
    memory: Reading = probes.read_memory()[0], None if device is None else device.read()
    usage = None if device is None else device.usage_now_and_then()
    cpu_ns = thread_time_ns() - cpu_ns if thread == get_ident() else -1
    container.began, container.ended = began, ended
    state.add(GuestStep(container, container.trace, began, ended, cpu_ns, memory, usage))
