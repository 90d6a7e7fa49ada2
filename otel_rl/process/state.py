"""The state of this process: the only mutable globals of the package, and what a fork does to them."""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from otel_rl import guard, ids
from otel_rl.clock import Clock, first_start_ns, process_start_ns
from otel_rl.config import Config
from otel_rl.process import memory
from otel_rl.process.identity import Identity, found_attempt, from_launcher
from otel_rl.process.layout import layout
from otel_rl.records import Attributes, Log, Noted
from otel_rl.vocabulary import SETUP, TEARDOWN

PHASES = frozenset((SETUP, TEARDOWN))
"""Traces of ours that are no step; a process without steps has no other."""
QUEUE_LIMIT = 200_000
"""Records that may wait for the flusher, about 150 MB; more are dropped and counted."""


class Trace:
    """What the spans of one trace share: its id, whether it is sampled, and the clock's anchor.

    The id is on an object of its own because ranks above 0 open their set-up before they know the attempt, and because
    all spans of a step are placed on the wall clock by one anchor.
    """

    __slots__ = ("anchor", "known", "sampled", "step", "trace_id", "work")

    def __init__(self, trace_id: int, anchor: int, *, sampled: bool = True, known: bool = True, step: str = "") -> None:
        self.trace_id = trace_id
        self.anchor = anchor
        self.sampled = sampled
        self.known = known
        self.step = step
        """Loop and number of the step, the same in every attempt; empty where it is none of ours."""
        self.work: Any = None
        """Takes what the stages of the step tell of samples and tokens, where no integration counts them."""

    @property
    def is_phase(self) -> bool:
        """Whether it is that of set-up or tear-down, which may last as long as the process."""
        return self.step.partition(" ")[0] in PHASES

    def derive(self, attempt: str) -> int:
        """Take the ids that the attempt gives, now that it is known; returns that of the root."""
        loop, _, number = self.step.rpartition(" ")
        self.trace_id = ids.trace_id(attempt, loop, int(number))
        if not self.is_phase and self.sampled:
            self.sampled = state.sampled(self.trace_id)
        self.known = True
        return ids.root_id(attempt, loop, int(number))


class InCollective(threading.local):
    """Whether this thread is inside a collective: the ones that it calls in turn belong to it."""

    active = False


class Generating(threading.local):
    """What this thread generates now with transformers."""

    call: Any = None
    """The innermost call of ``generate``."""
    marks: list[int] | None = None
    """When it began to decode and when each of its tokens was there; hooks of the kind ``marks`` append to it."""
    engine: Any = None
    """The continuous batching whose loop this thread runs."""
    indices: dict[int, int] | None = None
    """Places of the prompts that are being submitted together, by the prompt's ``id()``."""
    origin: Any = None
    """Engine and origin of the request that is being submitted."""
    error: str = ""
    """Class of the exception by which the request fails that is given back next."""


def _nothing(*_: object) -> None:
    return None


def _no() -> bool:
    return False


def _as_it_is(function: Any) -> Any:
    return function


@dataclass(eq=False)
class Training:
    """What integrations remember from one hook to the next while a framework trains."""

    loop: Any = None
    """The loop whose step is open."""
    throughput: Any = None
    """Counts the loop's work."""
    inner: int = 0
    """How many loops of other trainers are open inside the open step, one inside the other."""
    between: Any = None
    """The open stage that lasts from one call to another."""
    rollouts: dict[str, Any] = field(default_factory=dict)
    """The rollout that is being consumed, by mode: an evaluation does not end that of the training."""
    mode: str = ""
    """Whether the rollout that is being made and scored is one of training or of an evaluation; empty between them."""
    evaluating: int = 0
    """How many calls that evaluate are open, one inside the other."""
    rewarding: dict[Any, Any] | None = None
    """Open reward functions by the framework's own timing context, while rewards are computed."""
    skipped: int = 0
    """Optimizer updates that were skipped; the framework's step number counts them too."""
    forward: Any = None
    """What the forward said that has returned last in the open step: the micro-batch of the backward that follows."""
    losses: list[Any] = field(default_factory=list)
    """Losses of the micro-batches of the open step."""
    readers: dict[Any, Any] = field(default_factory=dict)
    """Which of a trainer's own metrics have been read."""
    vllm: Any = None
    """The engines of vLLM and the requests that they have taken."""
    sampling: Any = None
    """What the trainer says of the requests of its open rollout: policy version, samples, groups."""
    sampled: int = 0
    """How many rollouts have begun."""
    criteria: Any = None
    """Set once a call of ``generate`` has had stopping criteria whose outcome its output does not show."""
    generating: Generating = field(default_factory=Generating)
    batching: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary)
    """What is known of the open requests of each continuous batching."""
    streams: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary)
    """By response of an API client, the stream that is being read from it."""
    staging: dict[int, Any] = field(default_factory=dict)
    """By thread, the asynchronous checkpoint that its call is staging."""
    stepping: dict[Any, Any] = field(default_factory=dict)
    """By its stage, of an optimizer's step that has begun and not told its end: ends the stage if the step raised."""
    heard: dict[Any, bool] = field(default_factory=dict)
    """By an event of the framework and the classes of its callbacks, whether any listens to it."""


@dataclass(eq=False)
class Runtime:
    """Everything that one process knows while it records."""

    on: bool = False
    """Hooks and stages record only while this is true."""
    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=Clock)
    started_ns: int = field(default_factory=process_start_ns)
    """When the process began, monotonic; behind a recording that was stopped: when the next one was asked for."""
    first_ns: int = field(default_factory=first_start_ns)
    """When it began, or the first of those that it was forked or started from: no request was submitted before (it may
    have been queued there), monotonic."""

    identity: Identity = field(default_factory=Identity)
    learned: dict[str, Any] = field(default_factory=dict)
    """What this process has learned of itself; the rest of its identity is its launcher's word, or its parent's."""
    frozen: bool = False
    """Whether the resource is final."""
    identifying: Any = field(default_factory=threading.RLock)
    """Held while one of the two changes: the flusher's thread may freeze what the program's is learning."""
    untold: list[Any] = field(default_factory=list)
    """Trees that were opened before the attempt was known."""
    unsampled: set[int] = field(default_factory=set)
    """Traces of them that turned out not to be sampled; spans of theirs may be held."""
    may_meet: bool = False
    """Whether this is a rank that looks for the others when it begins its first step; not behind a process group."""
    rendezvous: Any = None
    """Where it meets the other ranks while it does, once it trains without a process group."""
    ask_again: Callable[[], object] | None = None
    """Learns the attempt that rank 0 had not said in time."""
    directory: Path | None = None
    """Where this process journals, once it does."""

    queue: deque[Any] = field(default_factory=deque)
    """Finished stages, collectives, logs and numbers on their way to the flusher."""
    noted: Noted = field(default_factory=Noted)
    """Finished requests on their way to the flusher; it is queued while it is not empty."""
    open: set[Any] = field(default_factory=set)
    """Stages and collectives that have begun and not ended; who looks through it makes a ``copy``, which nobody sees
    change: in the middle of a ``tuple`` the collector may come, and drop what ends a stage."""
    dropped: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Records given up before the journal, by signal and reason."""
    wake: Callable[[], None] = _nothing
    """Starts the flusher with the first record."""
    end_journal: Callable[[deque[Any]], None] = _nothing
    """Writes what waits in the queue of the journal and ends it; what comes has another one, and counts of its own."""
    awake: bool = False
    wake_again_ns: int = 0
    """Not before this (monotonic) is another attempt made to start the flusher."""

    provider: Any = None
    """What OpenTelemetry's API must have for a tracer provider if stages are to be current for other libraries, too:
    none; something else once the program has made a provider of its own."""
    container: Any = None
    """The open container of this rank (of the step, else of set-up): parent of what has no parent."""
    behind: Callable[[Any], None] | None = None
    """Told of each stage that ends while the step goes on behind its block."""
    phase: Any = None
    """Set-up or tear-down: what is open while no step is."""
    open_setup: Callable[[], None] = _nothing
    """Opens the set-up trace when the first span needs a place."""
    inherited: Trace | None = None
    """Of the step in which this process was forked or started: it ends in the parent."""
    told: Any = None
    """Memory shared with the children that are forked while the attempt is unknown: it comes to stand there."""
    heard: Any = None
    """That of the parent."""
    above: tuple[Any, ...] = ()
    """What was open in the parent then; a stage of ours may be below it."""
    loops: int = 0
    """How many training loops this process has begun."""
    training: Training = field(default_factory=Training)

    exhausted: int = 0
    """The id of the out-of-memory error that passes through the open stages; it is logged by the innermost only."""

    follow: Callable[[Any], None] = _nothing
    """Hooks what an object and its class have in place of hooked methods."""
    look_again: Callable[[], None] = _nothing
    """Hooks what other libraries have put in place of hooked functions meanwhile."""
    is_compiling: Callable[[], bool] = _no
    """``torch.compiler.is_compiling`` once torch is there."""
    is_tracing: Callable[[], bool] = _no
    """The part of it that Dynamo answers while it traces the caller, and ``compiler`` has the other part in
    ``_is_compiling_flag``: together half as many calls, where each counts."""
    compiler: Any = field(default_factory=lambda: SimpleNamespace(_is_compiling_flag=False))
    uncompiled: Callable[[Any], Any] = _as_it_is
    """``torch.compiler.disable`` while torch.compile looks at the functions that are called."""
    in_collective: InCollective = field(default_factory=InCollective)

    def __reduce__(self) -> str:
        """A function that somebody pickles (Ray) takes the name along; where it is unpickled, that process's own."""
        return "state"

    def start(self, config: Config, wake: Callable[[], None]) -> None:
        """Begin to record."""
        self.config = config
        # A thread that was late for the end of the last recording has woken nobody, and its record is not of this one.
        self.awake, self.wake_again_ns, self.queue, self.noted = False, 0, deque(), Noted()
        self.identity = from_launcher(config)
        self.may_meet = self.identity.world_size > 1 or bool(config.attempt_id)
        self.wake = wake
        self.started_ns = self.started_ns or monotonic_ns()
        self.on = True

    def add(self, record: object) -> bool:
        """Queue one record for the flusher; False if the queue is full. Cost: 0.15 us; never blocks."""
        if len(self.queue) >= QUEUE_LIMIT:
            self.dropped["traces", "queue_full"] += 1
            return False
        self.queue.append(record)
        if not self.awake:
            self.ensure_awake()
        return True

    def drop(self, signal: str, reason: str, count: int = 1) -> None:
        """Count records that are given up before the journal."""
        self.dropped[signal, reason] += count

    def ensure_awake(self) -> None:
        """Start the flusher of this process if it does not run."""
        now = monotonic_ns()  # first: between the look and the mark nothing is called, so one thread alone goes on
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

    def now(self) -> int:
        """The wall clock by the current anchor, ns since 1970."""
        return monotonic_ns() + self.clock.anchor

    def sampled(self, trace_id: int) -> bool:
        """Decide whether a step is sampled; by its trace id alone, so that all ranks decide alike."""
        sampler = self.config.sampler
        if sampler == "traceidratio":
            return (trace_id & 0xFFFFFFFFFFFFFFFF) < round(self.config.sampler_ratio * (1 << 64))
        return sampler == "always_on"

    def identify(self, **changes: Any) -> None:
        """Take in what has become known about this process, until the resource is frozen; a new rank always counts."""
        known = {key: value for key, value in changes.items() if value not in ("", None)}
        with self.identifying:
            if self.frozen and any(known.get(key, of) != of for key, of in self.identity.in_world.items()):
                known["coordinates"] = {}  # another world: what was known of the place in the last one holds no more
            self.learned |= known
            if not self.frozen or "rank" in known or "attempt_id" in known:
                self.identity = replace(self.identity, **known)

    def freeze(self) -> None:
        """Make the resource final, with what can be known by now of this rank's place among the others."""
        if self.frozen:
            return
        with self.identifying:
            with guard.guard("find this rank's place"):
                self.identify(coordinates=layout.known())
            self.frozen = True

    def know_device(self, device_id: str) -> None:
        """Take in which device this process uses, also where the resource is final: models load long."""
        with self.identifying:
            if device_id != self.identity.device_id:
                self.identity = replace(self.identity, device_id=device_id)

    def found_attempt(self) -> Identity:
        """Make an attempt of our own: rank 0's duty, and any rank's when the others cannot be asked."""
        with self.identifying:
            self.identity = found_attempt(self.identity)
            return self.identity

    def log(self, event_name: str, body: str, attributes: Attributes, severity: int = 13) -> None:
        """Queue a log record about this process."""
        self.add(Log(event_name, self.now(), attributes, body, severity))


state = Runtime()


def after_fork_in_child() -> None:
    """Start afresh in a forked child: nothing of the parent's is written twice, no lock of the parent's is waited for.

    The container stays: what the child records hangs below the step in which it was forked.
    """
    ids.reseed()
    guard.errors.clear()
    state.queue = deque()
    state.noted = Noted()
    state.above += tuple(state.open.copy())
    state.open = set()
    state.dropped = defaultdict(int)
    state.started_ns = monotonic_ns()
    state.clock.set_ns = 0
    state.identity = state.identity.in_child()
    state.learned = {}
    state.identifying = threading.RLock()
    state.awake = False
    state.wake_again_ns = 0
    if state.container is None and state.training.loop is not None:
        state.training.loop.resume()
    state.inherited = state.container and state.container.trace
    state.heard, state.told = state.told or state.heard, None
    state.untold, state.may_meet, state.rendezvous = [], False, None
    if state.on and state.inherited is None:  # nothing to be below: a set-up of its own would have the parent's ids
        state.identity, state.frozen = from_launcher(state.config), False
    state.loops = 0
    state.behind = None
    state.training = Training()
    state.ask_again = None
    memory.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork_in_child)
