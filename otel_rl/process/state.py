"""The state of this process: the only mutable globals of the package, and what a fork does to them."""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from otel_rl import guard, ids
from otel_rl.clock import Clock, first_start_ns, process_start_ns
from otel_rl.config import Config
from otel_rl.process import layout as coordinates
from otel_rl.process import memory
from otel_rl.process.identity import Identity, from_launcher, identifying, make_attempt
from otel_rl.records import Attributes, Labels, Log, Noted
from otel_rl.vocabulary import SETUP, TEARDOWN

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

    __slots__ = ("anchor", "is_carried", "known", "sampled", "step", "trace_id", "work")

    def __init__(self, trace_id: int, anchor: int, *, sampled: bool = True, known: bool = True, step: str = "") -> None:
        self.trace_id = trace_id
        self.anchor = anchor
        self.sampled = sampled
        self.known = known
        self.step = step
        """Loop and number of the step, the same in every attempt; empty where it is none of ours."""
        self.is_carried = False
        """Whether it is another process's: its container is not recorded here."""
        self.work: StepWork | None = None
        """Takes what the stages of the step tell of samples and tokens, where no integration counts them."""

    @property
    def is_phase(self) -> bool:
        """Whether it is that of set-up or tear-down, which may last as long as the process."""
        return self.step.partition(" ")[0] in PHASES

    @property
    def is_step(self) -> bool:
        """Whether it is that of a step, of this process or another."""
        return bool(self.step) and not self.is_phase

    def derive(self, attempt: str) -> int:
        """Take the ids that the attempt gives, now that it is known; returns that of the root."""
        loop, _, number = self.step.rpartition(" ")
        self.trace_id = ids.trace_id(attempt, loop, int(number))
        if not self.is_phase and self.sampled:
            self.sampled = state.sampled(self.trace_id)
        self.known = True
        return ids.root_id(attempt, loop, int(number))


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


UNREAD: Final = b"", None
"""A memory reading of nothing."""


def _unread() -> tuple[bytes, None]:
    return UNREAD


@dataclass(eq=False)
class Training:
    """What integrations remember from one hook to the next while a framework trains."""

    throughput: Any = None
    """Counts the loop's work."""
    inner: int = 0
    """How many loops of other trainers are open inside the open step, one inside the other."""
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
    observed: Any = None
    """What has been observed of models and batches, once something has."""
    deferred: deque[Any] = field(default_factory=deque)
    """Numbers on their way from a device."""
    resolving: Any = field(default_factory=threading.Lock)
    """Held by the thread that hands them over."""


@dataclass(eq=False)
class Communication:
    """What is known of process groups, and of collectives on their way."""

    worlds: int = 0
    """How many default process groups this process has made; the names of groups begin anew with each."""
    groups: dict[int, Any] = field(default_factory=dict)
    """By ``id()`` of the process group: a weak reference to it, and how records name it."""
    kinds: set[str] = field(default_factory=set)
    """Descriptions of groups that are labels of metrics."""
    launched: dict[int, Any] = field(default_factory=dict)
    """By ``id()`` of what is to be waited for: a weak reference to it, and the collective."""
    seen_in: Any = None
    """The stage in which a collective was seen last."""
    in_backward: bool = False
    """Whether a collective was seen in a backward that is not DDP's."""
    before_making: Any = None
    """What of the device was in use before the communicator that is being made."""
    buffers: int = 0
    """Estimate of what communicators take of the device, bytes."""
    wrapped: WeakSet[Any] = field(default_factory=WeakSet)
    """Models whose gradients DDP reduces."""
    layout: coordinates.Layout = field(default_factory=coordinates.Layout)
    """What the program's meshes and grids say of this rank's place."""
    ask_again: Callable[[], object] | None = None
    """Learns the attempt that rank 0 had not said in time, if it has by now."""


@dataclass(eq=False)
class Runtime:
    """Everything that one process knows while it records."""

    on: bool = False
    """Hooks and stages record only while this is true."""
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
    said_failure: bool = False
    """Whether a disk that refuses was mentioned."""

    queue: deque[object] = field(default_factory=deque)
    """Finished stages, collectives, logs and numbers on their way to the flusher."""
    noted: Noted = field(default_factory=Noted)
    """Finished requests on their way to the flusher; it is queued while it is not empty."""
    series: dict[str, tuple[str, Labels]] = field(default_factory=dict)
    """Metric and attributes of the numbers whose names a user or a framework gave, by name with prefix."""
    alike: dict[str, list[str]] = field(default_factory=dict)
    """These names by how Prometheus writes them."""
    refused: set[str] = field(default_factory=set)
    """Names that a number was given and cannot have."""
    dropped: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    """Records given up before the journal, by signal and reason."""
    wake: Callable[[], None] = _nothing
    """Starts the flusher with the first record."""
    awake: bool = False
    wake_again_ns: int = 0
    """Not before this (monotonic) is another attempt made to start the flusher."""

    step_thread: int = 0
    """The thread that has the steps; 0 while none has."""
    training: Training = field(default_factory=Training)

    memory_reader: Any = None
    """The probe behind ``read_memory``."""
    read_memory: Callable[[], Any] = _unread
    """Reads the host's memory once; a probe, put in place by ``instrument()``."""
    read_device: Callable[[int | None], Any] | None = None
    """Reads that of an accelerator, where there is one, by its number; None is the current one."""
    reading: Any = UNREAD
    """The last memory reading of the host."""
    probe_ns: int = 0
    """When it was read, monotonic."""
    find_device: Callable[[], str | None] = _nothing
    """Names the device that this process uses as its driver does; None as long as it uses none."""
    has_context: Callable[[int], object] | None = None
    """Says of an accelerator, by its number, whether this process uses it; None where nobody can tell."""
    device: Any = None
    """What is done on a device at both ends of a stage; None until the process uses one."""
    comm: Communication = field(default_factory=Communication)

    def __reduce__(self) -> str:
        """A function that somebody pickles (Ray) takes the name along; where it is unpickled, that process's own."""
        return "state"

    def start(self, config: Config, wake: Callable[[], None]) -> None:
        """Begin to record."""
        self.config = config
        # A record of the last recording may have been queued after its end, without a flusher.
        self.awake, self.wake_again_ns, self.queue, self.noted = False, 0, deque(), Noted()
        self.identify_anew()
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

    def hold_step(self) -> int:
        """Hold the steps of this process on this thread; returns which it is."""
        self.step_thread = get_ident()
        return self.step_thread

    def pause(self) -> None:
        """Record nothing more; what has been recorded stays."""
        self.on = False

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
        """Be what the launcher says, whatever was known before."""
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
        self.learn_device()
        with identifying.lock:
            with guard.guard("find this rank's place"):
                self.identify(coordinates=self.comm.layout.known())
            identifying.frozen = True

    def learn_device(self) -> None:
        """Take in which device this process uses, also where the resource is final: models load long."""
        found = guard.attempt("find", "the device of this rank", self.find_device)
        if found and found != self.identity.device_id:
            self.inherit(device_id=found)

    def make_attempt(self) -> None:
        """Make an attempt of our own: the driver's and rank 0's duty, and any one's when the others cannot be asked."""
        with identifying.lock:
            self.identity = make_attempt(self.identity)
            if self.identity.is_worker:
                self.identity = self.identity.independent("driver")

    def hold_steps(self) -> None:
        """Be a rank of the run, if this is a worker that begins steps of its own."""
        if self.identity.is_worker:
            with identifying.lock:
                self.identity = self.identity.independent("rank")

    def log(self, event_name: str, body: str, attributes: Attributes, severity: int = 13) -> None:
        """Queue a log record about this process."""
        self.add(Log(event_name, self.now(), attributes, body, severity))


state = Runtime()


_of_parents: list[Any] = []
"""Events and pinned memory of devices that a fork inherited: to free them would use the parent's device."""


def after_fork_in_child() -> None:
    """Start afresh in a forked child: nothing of the parent's is written twice, no lock of the parent's is waited for.

    What the child records hangs below the step in which it was forked (``trace/memory.py``).
    """
    ids.reseed()
    guard.errors.clear()
    state.queue = deque()
    state.noted = Noted()
    state.dropped = defaultdict(int)
    state.started_ns = monotonic_ns()
    state.clock.set_ns = 0
    state.identity = state.identity.in_child()
    state.awake = False
    state.wake_again_ns = 0
    state.step_thread = 0
    _of_parents.append((state.training.deferred, state.device))
    state.device = None
    state.training = Training()
    state.comm = Communication()
    state.reading = UNREAD
    state.probe_ns = 0
    memory.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork_in_child)
