"""The state of this process: the only mutable globals of the package, and what a fork does to them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from otel_rl import guard, ids
from otel_rl.clock import Clock, first_start_ns, monotonic_ns, process_start_ns
from otel_rl.config import Config
from otel_rl.process import memory
from otel_rl.process.identity import Identity, from_launcher, identifying, make_attempt
from otel_rl.process.layout import layout
from otel_rl.records import Attributes, Log, RecordQueue, signal_of
from otel_rl.vocabulary import CLOCK_STEPPED, SETUP, TEARDOWN

if TYPE_CHECKING:
    from otel_rl.trace.own_loop import StepWork

PHASES = frozenset((SETUP, TEARDOWN))
"""Traces of ours that are no step; a process without steps has no other."""
QUEUE_LIMIT = 200_000
"""Records that may wait for the flusher, about 150 MB; more are dropped and counted."""


class Trace:
    """What the spans of one trace share: its id, whether it is sampled, and the clock's anchor.

    The id is on an object of its own because ranks above 0 open their set-up before they know the attempt, and because
    all spans of a step are placed on the wall clock by one anchor.
    """

    __slots__ = ("anchor", "began", "is_carried", "known", "sampled", "step", "trace_id", "work")

    def __init__(self, trace_id: int, anchor: int, *, sampled: bool = True, known: bool = True, step: str = "") -> None:
        self.trace_id = trace_id
        self.anchor = anchor
        self.sampled = sampled
        self.known = known
        self.step = step
        """Loop and number of the step, the same in every attempt; empty where it is none of ours."""
        self.began = 0
        """When the step, or set-up or tear-down, began, also that of another process (monotonic, ns); 0 if unknown."""
        self.is_carried = False
        """Whether it is another process's: its container is not recorded here."""
        self.work: StepWork | None = None
        """Counts what the stages of the step report of samples and tokens, where no integration counts them."""

    @property
    def is_phase(self) -> bool:
        """Return whether it is that of set-up or tear-down, which may last as long as the process."""
        return self.step.partition(" ")[0] in PHASES

    @property
    def is_step(self) -> bool:
        """Return whether it is that of a step, of this process or another."""
        return bool(self.step) and not self.is_phase

    def derive(self, attempt: str) -> int:
        """Derive the ids from the attempt, now that it is known; return that of the root."""
        loop, _, number = self.step.rpartition(" ")
        self.trace_id = ids.trace_id(attempt, loop, int(number))
        if not self.is_phase and self.sampled:
            self.sampled = state.sampled(self.trace_id)
        self.known = True
        return ids.root_id(attempt, loop, int(number))


def _nothing(*_: object) -> None:
    return None


def _call(then: Callable[[], object]) -> None:
    then()


@dataclass(eq=False)
class Runtime:
    """Everything that one process knows while it records."""

    on: bool = False
    """Hooks and stages record only while this is true."""
    is_ending: bool = False
    """Whether our exit handler is over: set-up, steps and tear-down are, and what comes is journaled at once."""
    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=Clock)
    started_ns: int = field(default_factory=process_start_ns)
    """When the process began, monotonic; after a recording that was stopped: when the next one was asked for."""
    first_ns: int = field(default_factory=first_start_ns)
    """When it began, or the first of those that it was forked or started from: no request was submitted before (it may
    have been queued there), monotonic."""

    identity: Identity = field(default_factory=Identity)
    directory: Path | None = None
    """Where this process journals, once it does."""

    queue: RecordQueue = field(default_factory=RecordQueue)
    """Finished stages, requests, collectives, logs and numbers on their way to the flusher."""
    dropped: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Records given up before the journal, by signal and reason."""
    wake: Callable[[], None] = _nothing
    """Starts the flusher with the first record."""
    journal: Callable[[Callable[[], object]], None] = _call
    """Asks the flusher to journal what was recorded until now, and calls a function in its thread when that is done.
    Never blocks."""
    awake: bool = False
    wake_again_ns: int = 0
    """Not before this (monotonic) is another attempt made to start the flusher."""

    step_thread: int = 0
    """The thread that has the steps; 0 while none has."""

    def __reduce__(self) -> str:
        """Return the name under which another process finds its own state.

        Ray pickles functions of the program that refer to it.
        """
        return "state"

    def start(self, config: Config, wake: Callable[[], None]) -> None:
        """Begin to record."""
        self.config = config
        # A record of the last recording may have been queued after its end, without a flusher.
        self.awake, self.wake_again_ns, self.queue = False, 0, RecordQueue()
        self.identify_anew()
        self.wake = wake
        self.started_ns = self.started_ns or monotonic_ns()
        self.on = True

    def add(self, record: object) -> bool:
        """Queue one record for the flusher; False if the queue is full. Cost: 0.15 us; never blocks."""
        if len(self.queue) >= QUEUE_LIMIT:
            self.drop(signal_of(record), "queue_full")
            return False
        self.queue.append(record)
        if not self.awake:
            self.ensure_awake()
        return True

    def drop(self, signal: str, reason: str, count: int = 1) -> None:
        """Count records that are given up before the journal."""
        self.dropped[signal, reason] += count

    def own_step(self) -> int:
        """Keep the steps of this process on this thread; return which it is."""
        self.step_thread = get_ident()
        return self.step_thread

    def pause(self) -> None:
        """Record nothing more; what has been recorded stays."""
        self.on = False

    def ensure_awake(self) -> None:
        """Start the flusher of this process if it does not run."""
        now = monotonic_ns()  # first: between the read and the mark nothing is called, so one thread alone goes on
        if not self.awake and now >= self.wake_again_ns:
            self.awake = True
            self.wake_again_ns = now + 1_000_000_000
            with guard.guard("start the flusher"):
                self.wake()
                return
            self.awake = False  # no thread could be started; the records wait

    def reset(self) -> None:
        """Forget everything, also when the process began: what was before is no set-up of the next recording."""
        vars(self).update(vars(Runtime(started_ns=0)))
        memory.renew_all()

    def follow_clock(self) -> None:
        """Follow the wall clock if it was set, and say so; where a step begins, never inside one."""
        jump = self.clock.re_anchor()
        if jump:
            self.log(CLOCK_STEPPED, f"the wall clock was set by {jump / 1e9:.3f} s", {})

    def now(self) -> int:
        """Return the wall clock by the current anchor, ns since 1970."""
        return monotonic_ns() + self.clock.anchor

    def sampled(self, trace_id: int) -> bool:
        """Decide whether a step is sampled; by its trace id alone, so that all ranks decide alike."""
        sampler = self.config.sampler
        if sampler == "traceidratio":
            return (trace_id & 0xFFFFFFFFFFFFFFFF) < round(self.config.sampler_ratio * (1 << 64))
        return sampler == "always_on"

    def identify(self, **changes: Any) -> None:
        """Add what has become known about this process, until the resource is frozen; a new rank always counts."""
        known = {key: value for key, value in changes.items() if value not in ("", None)}
        with identifying.lock:
            if identifying.frozen and any(known.get(key, of) != of for key, of in self.identity.in_world.items()):
                known["coordinates"] = {}  # another world: what was known of the place in the last one holds no more
            identifying.learned |= known
            if not identifying.frozen or "rank" in known or "attempt_id" in known:
                self.inherit(**known)

    def inherit(self, **changes: Any) -> None:
        """Change the identity by what this process has not learned of itself: its parent's, or its launcher's word."""
        with identifying.lock:
            self.identity = replace(self.identity, **changes)

    def identify_anew(self) -> None:
        """Replace the identity by what the launcher says, whatever was known before."""
        with identifying.lock:
            self.identity, identifying.frozen = from_launcher(self.config), False
            may_have_peers = self.identity.world_size > 1 or bool(self.config.attempt_id)
            identifying.may_meet = may_have_peers and not self.identity.is_worker

    def work_for(self, directory: Path, first_ns: int) -> None:
        """Record where the process does that this one works for, which began before it."""
        self.config = replace(self.config, directory=directory)
        self.first_ns = min(self.first_ns, first_ns)

    def freeze(self) -> None:
        """Make the resource final, with what is known of this rank's place among the others."""
        if identifying.frozen:
            return
        with identifying.lock:
            with guard.guard("find this rank's place"):
                self.identify(coordinates=layout.known())
            identifying.frozen = True

    def know_device(self, device_id: str) -> None:
        """Record which device this process uses, also where the resource is final: models load long."""
        if device_id != self.identity.device_id:
            self.inherit(device_id=device_id)

    def make_attempt(self) -> None:
        """Make an attempt of our own: the driver's and rank 0's duty, and any one's when the others cannot be asked."""
        with identifying.lock:
            self.identity = make_attempt(self.identity)
            if self.identity.is_worker:
                self.identity = self.identity.independent("driver")

    def become_rank(self) -> None:
        """Become a rank of the run, its only one without a world, if this is a worker that begins steps of its own."""
        if self.identity.is_worker:
            with identifying.lock:
                is_alone = self.identity.world_size == 1
                self.identity = replace(self.identity.independent("rank"), rank=0 if is_alone else self.identity.rank)

    def log(self, event_name: str, body: str, attributes: Attributes, severity: int = 13) -> None:
        """Queue a log record about this process."""
        self.add(Log(event_name, self.now(), attributes, body, severity))


state = Runtime()


def after_fork_in_child() -> None:
    """Start afresh in a forked child: nothing of the parent's is written twice, no lock of the parent's is waited for.

    What the child records hangs below the step in which it was forked (``trace/memory.py``).
    """
    ids.reseed()
    guard.errors.clear()
    guard.shortages.clear()
    state.queue = RecordQueue()
    state.dropped = defaultdict(int)
    state.started_ns = monotonic_ns()
    state.clock.set_ns = 0
    state.identity = state.identity.in_child()
    state.awake = False
    state.wake_again_ns = 0
    state.step_thread = 0
    memory.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork_in_child)
