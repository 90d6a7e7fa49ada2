"""What this process remembers of its open spans and of the step that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from otel_rl.process.identity import identifying
from otel_rl.process.memory import Memory
from otel_rl.process.state import Trace, state

if TYPE_CHECKING:
    from otel_rl.trace.stage import Stage
    from otel_rl.trace.steps import Loop
    from otel_rl.trace.tree import StepSpans


def _nothing() -> None:
    return None


def _no_caller() -> Stage | None:
    return None


@dataclass(eq=False)
class Tracing(Memory):
    """Spans that are open, and where a span belongs that has no parent."""

    open: dict[Any, None] = field(default_factory=dict)
    """Stages and collectives that have begun and not ended, in their order. Read a ``copy``: in the middle of a
    ``tuple`` the garbage collector may end a stage."""
    container: Stage | None = None
    """The open container of the step, else of set-up or tear-down: parent of what has no parent."""
    phase: StepSpans | None = None
    """Set-up or tear-down while it is open."""
    loop: Loop | None = None
    """The training loop that began last."""
    loops: int = 0
    """How many training loops this process has begun."""
    sibling: int = 0
    """The process id of a worker that trains apart from others of its run; 0 in all others."""
    provider: object = None
    """What OpenTelemetry's API must have for a tracer provider if stages are to be current for other libraries, too:
    none; something else once the program has made a provider of its own."""
    between: Stage | None = None
    """The open stage that lasts from one call to another."""
    around: Stage | None = None
    """The stage that this one is inside."""
    inherited: Trace | None = None
    """The step, or set-up, in which this process was forked or started: its container is the parent's."""
    carried: dict[int, Trace] = field(default_factory=dict)
    """Traces of other processes that carriers have named, by id."""
    last_end: int = 0
    """When a stage ended last (monotonic, ns)."""
    unidentified: list[StepSpans] = field(default_factory=list)
    """Trees that were opened before the attempt was known."""
    unsampled: set[int] = field(default_factory=set)
    """Traces of these that turned out not to be sampled; the spool may have spans of them."""
    exhausted: int = 0
    """The id of the out-of-memory error that passes through the open stages; only the innermost logs it."""
    open_setup: Callable[[], None] = _nothing
    """Opens the set-up trace for a span that has no place yet."""
    caller: Callable[[], Stage | None] = _no_caller
    """Returns a container that stands for the carrier in use."""

    def last_open(self) -> Stage | None:
        """Return what began last of all that is open, if that is a stage which another task or thread is in."""
        try:
            last = next(reversed(self.open), None)
        except RuntimeError:  # another thread began or ended one meanwhile
            return None
        return last if getattr(last, "token", None) is not None and last is not self.container else None

    def after_fork_in_child(self) -> None:
        """Record below the step that is open in the parent, was left last, or calls it, if its attempt is known."""
        if self.container is None and self.loop is not None:
            self.loop.resume()
        container = self.container or self.caller()
        open_setup, caller, provider = self.open_setup, self.caller, self.provider
        self.renew()
        self.open_setup, self.caller, self.provider = open_setup, caller, provider
        if container is not None and container.trace is not None and container.trace.known:
            self.container, self.inherited = container, container.trace
            self.inherited.is_carried = True
            self.carried[self.inherited.trace_id] = self.inherited
        elif state.on:  # nothing to be below: a set-up of its own would have the parent's ids
            state.identify_anew()
            identifying.may_meet = False


tracing = Tracing.keep("tracing")
