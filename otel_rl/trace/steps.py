"""The traces of a rank: set-up, one per step, tear-down. Steps tile the loop: where one ends the next begins."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from threading import enumerate as enumerate_threads
from threading import get_ident
from time import monotonic_ns
from types import TracebackType
from typing import cast

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext

from otel_rl import ids, vocabulary
from otel_rl.guard import attempt, errors, guard, say
from otel_rl.probes import deferred
from otel_rl.probes.attributes import device_points
from otel_rl.probes.memory import Reading, host, peak_rss
from otel_rl.process.rendezvous import Rendezvous
from otel_rl.process.state import PHASES, Trace, state
from otel_rl.records import Later, Point, Value
from otel_rl.trace.child_process import hear_attempt, leave_place, take_place, tell_attempt
from otel_rl.trace.current import CONTEXT, CURRENT, SPAN_KEY, is_shared
from otel_rl.trace.own_loop import OwnLoop
from otel_rl.trace.stage import Stage

LOOKS = 3
"""How many steps of a loop look for functions that another library has replaced, and for the device in use: either may
come when training begins."""


class Tree:
    """The two spans that hold one trace of this rank: the root, which only rank 0 emits, and the rank's container."""

    __slots__ = ("container", "peak", "root")

    def __init__(self, name: str, loop: str, number: int, begin: int, attributes: dict[str, Value]) -> None:
        self.peak = peak_rss()
        with state.identifying:  # the attempt may become known meanwhile, to all trees that are there
            self._open(name, loop, number, begin, attributes)

    def _open(self, name: str, loop: str, number: int, begin: int, attributes: dict[str, Value]) -> None:
        identity = state.identity
        # Of an unknown attempt nothing can be derived: spans of others that take this id must not collide.
        trace_id = ids.trace_id(identity.attempt_id or f"{ids.random_bits(128):x}", loop, number)
        # Set-up and tear-down are one trace each: they are where a reader learns how a run began and ended.
        is_known = bool(identity.attempt_id)
        # Where the trace is not known yet, that is decided when it is.
        is_for_all = loop in PHASES or not is_known
        is_sampled = state.config.sampler != "always_off" if is_for_all else state.sampled(trace_id)
        trace = Trace(trace_id, state.clock.anchor, sampled=is_sampled, known=is_known, step=f"{loop} {number}")
        root_id = ids.root_id(identity.attempt_id, loop, number)
        self.root: Stage | None = None
        if identity.rank == 0:
            self.root = Stage(name, dict(attributes), coarse=True)
            self.root.trace, self.root.span_id = trace, root_id
            self.root.open(begin, is_current=False)
        if state.clock.set_ns:
            attributes = {**attributes, vocabulary.CLOCK_SET: state.clock.set_ns}
        self.container = Stage(f"{vocabulary.RANK_SPAN} {identity.rank}", attributes, coarse=True)
        self.container.trace, self.container.parent_id = trace, root_id
        self.container.span_id = ids.random_bits(64) or 1
        self.container.open(begin, is_current=False)
        state.container = self.container
        if not is_known:
            state.untold.append(self)

    def know(self, attempt: str) -> None:
        """Take the ids that the attempt gives, now that it is known."""
        trace = self.container.trace
        if trace is not None and not trace.known:
            self.container.parent_id = trace.derive(attempt)
            if not trace.sampled:
                state.unsampled.add(trace.trace_id)

    def make_current(self) -> None:
        """Make the container current in this thread, so that a user's own spans nest below it.

        A span that happens to be current belongs to another trace: the step links to it.
        """
        container, context = self.container, CONTEXT.get()
        outer = context.get(SPAN_KEY)
        if outer is not None and outer.__class__ is not Stage and isinstance(outer, Span):
            container.outer = outer
            linked: SpanContext | None = outer.get_span_context()
            if linked is not None and linked.is_valid:
                container.add_link(linked)
        container.token = CURRENT.set(container)
        if is_shared():
            container.outside = context
            container.inner = Context({**context, SPAN_KEY: container})
            CONTEXT.set(container.inner)

    def leave(self) -> None:
        """Be current no more, but stay open."""
        self.container.leave()
        if state.container is self.container:
            state.container = None

    def close(self, end: int, error: BaseException | None = None, peak: int = 0) -> None:
        """End container and root at ``end`` (monotonic, ns); ``peak`` is the process's, if it has just been read."""
        peak = peak or peak_rss()
        if error is not None:
            self.container.fail(error)
            if self.container.status is None:  # the program ends in it without a failure: it is not whole all the same
                self.container.set_attribute(vocabulary.TRUNCATED, True)
        self.container.close(end, {vocabulary.RSS_PEAK: peak, vocabulary.RSS_PEAK_EXACT: peak > self.peak})
        state.queue.renew_finished()  # what is recorded from now on comes after the end of the step
        if self.root is not None:
            if error is not None:
                self.root.fail(error)
            self.root.close(end)
        if state.container is self.container:
            state.container = None


class Phase:
    """Set-up, tear-down and the time between two loops: what is open while no step is."""

    __slots__ = ("tree",)

    def __init__(self) -> None:
        self.tree: Tree | None = None

    def open(self, name: str, number: int, begin: int) -> None:
        """Open the phase's trace."""
        self.close(begin)
        self.tree = Tree(name, name, number, begin, {})

    def close(self, end: int, error: BaseException | None = None) -> None:
        """End the phase if one is open."""
        tree, self.tree = self.tree, None
        if tree is not None:
            tree.close(end, error)


def open_setup() -> None:
    """Give what has no place one: the step that was left last, a worker's, or set-up, which begins with the process."""
    if state.training.loop is not None:
        state.training.loop.resume()
    elif state.phase.tree is None and not take_place():
        state.phase.open(vocabulary.SETUP, 0, state.started_ns)


def know_attempt(attempt_id: str = "", run_id: str = "") -> None:
    """Take in the attempt of the job, or (without arguments) make one of our own where nobody told us."""
    with state.identifying:  # the flusher lets the set-up's spans go once the attempt is known: with the ids of that
        if attempt_id:
            state.identify(attempt_id=attempt_id, run_id=run_id)
        else:
            state.found_attempt()
        untold, state.untold = state.untold, []
        for tree in untold:
            tree.know(state.identity.attempt_id)
    tell_attempt()


def end_raised(now: int, error: BaseException | None = None) -> None:
    """End the stages of optimizers' steps that raised: torch does not tell that they are over."""
    for end_if_raised in tuple(state.training.stepping.values()):
        end_if_raised(now, error)


def report_alone() -> None:
    """Make an attempt of our own if nobody told us the job's, and say so."""
    with state.identifying:  # another thread may be told the job's meanwhile
        is_alone = not state.identity.known and not hear_attempt()
        if is_alone:
            know_attempt()
    if is_alone:
        is_named = state.config.run_id or state.identity.world_size == 1
        say(
            "otel_rl: rank %d found no process group to learn the attempt from, nor rank 0, and reports alone; %s",
            state.identity.rank,
            f"a launcher can set {'' if is_named else 'OTEL_RL_RUN_ID for all ranks, or '}OTEL_RL_ATTEMPT_ID",
        )


def find_attempt() -> None:
    """Before a step: have the attempt, or meet the ranks that have it."""
    if state.may_meet:
        state.may_meet = False
        state.rendezvous = Rendezvous(state.identity, state.config)
        state.ensure_awake()
    elif not state.identity.known and state.rendezvous is None:
        if state.comm.ask_again is not None:
            attempt("ask", "rank 0 for its attempt", state.comm.ask_again)
        report_alone()


def meet(*, is_asked: bool, is_last: bool) -> None:
    """Look for the other ranks where this process meets them, on the flusher's thread; go on alone after a while.

    Args:
        is_asked: look now, though the last time is not long ago.
        is_last: this process ends.
    """
    rendezvous = state.rendezvous
    if rendezvous is None:
        return
    with guard("meet the other ranks"):
        found = rendezvous.look(state.identity, is_asked=is_asked)
        with state.identifying:
            if found is not None and not state.identity.known:  # a process group may have told it meanwhile
                know_attempt(*found)
    if is_last and not rendezvous.is_over:
        rendezvous.leave()
    if rendezvous.is_over:
        state.rendezvous = None
        report_alone()


class Loop:
    """One training loop of this process: ``train``, then ``train.2`` and so on.

    Args:
        of: what is trained; a loop may restart the one before it if that trained the same.
    """

    def __init__(self, of: Hashable = None) -> None:
        before = state.training.loop
        if before is not None and before.number < 0:  # it ended before its first step
            before = before.before
        self.of = of
        self.before: Loop | None = before if before is not None and before.of == of else None
        """The one that this may restart, until its first step begins."""
        self.said: dict[str, Value] = {}
        """Attributes of all of its steps."""
        leave_place()
        if not state.loops:
            open_setup()  # where nothing was recorded before: it began with the process all the same
        state.loops += 1
        self.name = "train" if state.loops == 1 else f"train.{state.loops}"
        self.tree: Tree | None = None
        self.last: Tree | None = None
        """The step that began last, open or not."""
        self.number = -1
        self.first = -1
        """The lowest number with which this loop, or one that it restarts, began; below 0 before its first step."""
        self.looks = LOOKS
        """How many more steps look for replaced functions when they begin."""
        self.has_failed = False
        """Whether an exception ended its last step."""
        self.left = 0
        """When the block of the open step ended (monotonic, ns); 0 while it goes on."""
        self.until = 0
        """When the last stage behind the block ended (monotonic, ns); 0 where none has."""
        self.began = 0
        """When the step that is not counted yet began (monotonic, ns); 0 where there is none."""
        self.is_over = False
        """Whether it has ended; it goes on where the program catches the exit that ended it, and begins a step."""
        self.thread = get_ident()
        """The thread on which the last step began."""
        self.at_end: list[Callable[[int, int], None]] = []
        """Called with begin and end (monotonic, ns) of every step; integrations add what they count."""
        self.own: OwnLoop | None = None
        """Counts samples and tokens where no integration does."""

    def begin(self, number: int) -> None:
        """Begin step ``number`` now; the one before it ends at the same moment.

        A number that is open already goes on: its batch was asked for twice, because an epoch ended.
        """
        if get_ident() != self.thread:
            self.change_thread()
        if self.tree is not None and number == self.number:
            return
        if state.training.deferred:
            attempt("take", "what has come from a device", deferred.resolve)
        if self.looks:
            self.looks -= 1
            state.look_again()
            state.learn_device()
        now = monotonic_ns()
        if state.may_meet or not state.identity.attempt_id:
            find_attempt()
        state.freeze()
        jump = state.clock.re_anchor()
        if jump:
            state.log(vocabulary.CLOCK_STEPPED, f"the wall clock was set by {jump / 1e9:.3f} s", {})
        if self.first < 0:
            self.begin_first(number)
        attributes: dict[str, Value] = {vocabulary.ITERATION: number, vocabulary.LOOP_NAME: self.name, **self.said}
        tree = Tree(vocabulary.LOOP, self.name, number, now, attributes)
        # What was open ends behind the new tree: other threads find a container at every moment.
        self.count(now, self.close(now, peak=tree.peak))
        state.phase.close(now)
        self.tree = self.last = tree
        tree.make_current()
        self.number, self.began, self.left, self.until = number, now, 0, 0
        self.is_over = False

    def begin_first(self, number: int) -> None:
        """Note the number of the first step, and whether it is a restart: after a failure, or in the middle of a loop.

        A loop is another training if it begins, without a failure before it, where the loops that restart each other
        began.
        """
        before, self.before, self.first = self.before, None, number
        if before is not None and number <= before.number and (before.has_failed or number > before.first):
            self.said[vocabulary.LOOP_RESTART_OF] = before.name
            self.first = min(number, before.first)

    def change_thread(self) -> None:
        """Follow a program that trains on another thread now, and say it once if the last step is still going on."""
        self.thread = get_ident()
        if self.tree is not None and not self.left:
            errors["begin a step while one of another thread is open"] += 1
            if errors["begin a step while one of another thread is open"] == 1:
                say("otel_rl: two threads of this process train at once, so their steps are mixed; use two processes")

    def leave(self, now: int) -> None:
        """Let what follows have its own context; the step lasts until the next one begins, or ends here as the last."""
        if self.tree is not None:
            end_raised(now)
            self.tree.leave()
            self.left = now

    def resume(self) -> None:
        """Go on with the step that was left: evaluation and checkpoints behind it belong to it."""
        if self.last is not None and state.container is None:
            state.container = self.last.container
            state.behind = self.see

    def see(self, stage: Stage) -> None:
        """Take in that a stage has ended while the step goes on behind its block."""
        if self.is_behind(stage) and stage.ended > self.until:  # no call in between: another thread's may end later
            self.until = stage.ended

    def is_behind(self, stage: object) -> bool:
        """Whether a stage of the last step began behind its block."""
        trace = None if self.last is None else self.last.container.trace
        return isinstance(stage, Stage) and stage.trace is trace and stage.began >= self.left > 0

    def over(self) -> int:
        """When the open step ended if no other follows: with its block or the last stage behind; now if one goes on."""
        return (0 if self.goes_on_behind() else self.until or self.left) or monotonic_ns()

    def goes_on_behind(self) -> bool:
        """Whether a stage goes on that began behind the block of the last step."""
        return state.behind is not None and any(map(self.is_behind, state.open.copy()))

    def open_elsewhere(self) -> Tree | None:
        """Return the open step if another thread goes on with it."""
        is_alive = any(thread.ident == self.thread for thread in enumerate_threads())
        goes_on = not self.left or (is_alive and self.goes_on_behind())
        return self.tree if goes_on and self.thread != get_ident() else None

    def close(self, now: int, error: BaseException | None = None, peak: int = 0) -> Reading | None:
        """End the open step's spans, and give the memory at its end.

        An error closes them with its status and leaves the step uncounted.
        """
        tree, self.tree = self.tree, None
        state.behind = None
        if tree is None:
            return None
        end_raised(now, error)
        tree.close(now, error, peak)
        self.has_failed = error is not None and tree.container.status is not None
        if error is not None:
            self.began = 0
        return tree.container.after

    def count(self, now: int, memory: Reading | None) -> None:
        """Record the numbers of the step that lasted until ``now``."""
        began, self.began = self.began, 0
        if began:
            usage = None if state.device is None else state.device.usage_now_and_then()
            state.add(Later(_step_points, (began, now, state.clock.anchor, memory, usage)))
            for at_end in self.at_end:
                attempt("count", "a step", at_end, began, now)

    def end(self, error: BaseException | None = None) -> None:
        """End the loop and its open step now; tear-down begins."""
        now, self.is_over = self.over(), True
        open_until_now = self.tree is not None
        self.count(now, self.close(now, error))
        if open_until_now:
            state.phase.open(vocabulary.TEARDOWN, state.loops, now)


def _step_points(
    began: int, ended: int, anchor: int, reading: Reading | None, usage: tuple[int, int] | None
) -> list[Point]:
    """Say how long a step lasted, and what the process and its device held at its end; runs in the flusher."""
    time_ns = ended + anchor
    points = [Point(vocabulary.STEP_TIME, (ended - began) / 1e9, time_ns)]
    if reading is None:
        return points
    virtual, resident = host(reading[0])
    if resident:
        points += Point(vocabulary.RSS, resident, time_ns), Point(vocabulary.VMS, virtual, time_ns)
    device = reading[1]
    if device is not None:
        points += device_points(device, usage, time_ns)
    return points


class step:
    """Hold one step of a loop without a framework: ``with otel_rl.step(7):``, on every rank.

    Steps tile the loop: a step goes on behind its block until the next one begins (evaluation, a checkpoint). Only the
    last one of a loop ends with its block, or with the last stage behind it, and one that raises with its block.
    The step's trace has the same id on every rank. A span of somebody else that happens to be current is linked to. A
    number that does not rise begins another loop (``train.2``), since two steps of one loop must not share a trace.
    Inside a compiled region it does nothing.

    Args:
        number: the step as your loop counts it, 0 or above.

    Raises:
        ValueError: the number is not a whole number, 0 or above.

    Emits: ``rl.loop`` (rank 0), ``rl.rank N``, ``rl.step.time``; samples, tokens and their rates as far as stages or
    requests tell them (docs/requests.md). Cost: 30 us (``benchmarks/hotpath.py``).
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        try:
            self.number = operator.index(number)
        except TypeError:
            self.number = -1
        if self.number < 0:
            raise ValueError(f"step({number!r}): the number of a step is a whole number, 0 or above")

    def __enter__(self) -> Stage | None:
        if not state.on or state.is_compiling():
            return None
        with guard("begin a step"):
            loop = state.training.loop
            if loop is None or self.number <= loop.number:
                if loop is not None:
                    if get_ident() != loop.thread:
                        loop.change_thread()
                    loop.end()
                loop = state.training.loop = Loop()
                loop.own = OwnLoop()
                loop.at_end.append(loop.own.end_step)
            loop.begin(self.number)
            if loop.own is not None and loop.tree is not None and loop.tree.container.trace is not None:
                loop.own.begin_step(loop.tree.container.trace)
        return cast("Stage | None", state.container)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = state.training.loop
        if loop is None or state.is_compiling():
            return
        with guard("end a step"):
            now = monotonic_ns()
            if error is None:
                loop.leave(now)
            elif isinstance(error, SystemExit) and not error.code:
                loop.end(error)  # the program ends, and nothing has failed
            else:
                loop.close(now, error)
