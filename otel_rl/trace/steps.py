"""Steps: they tile the loop, so where one ends the next begins."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from threading import get_ident
from types import TracebackType

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt, guard
from otel_rl.probes.memory import Reading, probes
from otel_rl.process.hooked import hooking
from otel_rl.process.identity import identifying
from otel_rl.process.state import state
from otel_rl.records import Deferred, Value
from otel_rl.trace.attempt import find_attempt
from otel_rl.trace.carried import works_for_step
from otel_rl.trace.memory import tracing
from otel_rl.trace.own_loop import OwnLoop
from otel_rl.trace.stage import Stage, current_stage
from otel_rl.trace.step_edges import CHECKED_STEPS, prepare_step, step_points
from otel_rl.trace.training import end_raised
from otel_rl.trace.tree import StepSpans, close_phase, open_phase, open_setup


class Loop:
    """One training loop of this process: ``train``, then ``train.2`` and so on.

    Inside a step of another process there is no loop: its steps are work of that one, and begin nothing.

    Args:
        of: what is trained; a loop may restart the one before it if that trained the same.
    """

    def __init__(self, of: Hashable = None) -> None:
        self.of = of
        self.before = _restartable(tracing.loop, of)
        """The one that this may restart, until its first step begins."""
        self.said: dict[str, Value] = {}
        """Attributes of all of its steps."""
        if not tracing.loops and not works_for_step():
            open_setup()  # where nothing was recorded before: it began with the process all the same
        tracing.loops += 1
        self.name = _name(tracing.loops)
        self.tree: StepSpans | None = None
        """The spans of the open step."""
        self.last: StepSpans | None = None
        """The spans of the step that began last, open or not."""
        self.overlapping: dict[StepSpans, int] = {}
        """Steps of other tasks or threads whose block goes on, and when they began (monotonic, ns)."""
        self.number = -1
        self.first = -1
        """The lowest number with which this loop, or one that it restarts, began; below 0 before its first step."""
        self.checks_left = CHECKED_STEPS
        """How many more steps hook replaced functions when they begin."""
        self.has_failed = False
        """Whether an exception ended its last step."""
        self.left = 0
        """When the block of the open step ended (monotonic, ns); 0 while it goes on."""
        self.began = 0
        """When the step that is not counted yet began (monotonic, ns); 0 where there is none."""
        self.is_over = False
        """Whether it has ended; it goes on where the program catches the exit that ended it, and begins a step."""
        self.thread = state.own_step()
        """The thread on which the last step began."""
        self.holder = 0
        """The task or thread in which the block of the open step began; 0 without a block."""
        self.at_end: list[Callable[[int, int], None]] = []
        """Called with begin and end (monotonic, ns) of every step; integrations add what they count."""
        self.own: OwnLoop | None = None
        """Counts samples and tokens where no integration does."""

    def begin(self, number: int) -> None:
        """Begin step ``number`` now; the one before it ends at the same moment.

        A number that is open already goes on: its batch was asked for twice, because an epoch ended.
        """
        self.thread = state.own_step()
        if (self.tree is not None and number == self.number) or works_for_step():
            return
        self.checks_left = prepare_step(self.checks_left)
        now = monotonic_ns()
        if identifying.may_meet or not state.identity.attempt_id:
            find_attempt()
        state.become_rank()
        state.freeze()
        state.follow_clock()
        if self.first < 0:
            self.begin_first(number)
        attributes: dict[str, Value] = {vocabulary.ITERATION: number, vocabulary.LOOP_NAME: self.name, **self.said}
        tree = StepSpans(vocabulary.LOOP, self.name, number, now, attributes)
        # What was open ends after the new tree: other threads find a container at every moment.
        self.count(now, self.close(now, then=tree))
        close_phase(now)
        self.tree = self.last = tree
        tree.make_current()
        self.number, self.began, self.left = number, now, 0
        self.is_over = False

    def begin_first(self, number: int) -> None:
        """Record the number of the first step, and decide whether it is a restart: after a failure, or in mid-loop.

        A loop is another training if it begins, without a failure before it, where the loops that restart each other
        began.
        """
        before, self.before, self.first = self.before, None, number
        if before is not None and number <= before.number and (before.has_failed or number > before.first):
            self.said[vocabulary.LOOP_RESTART_OF] = before.name
            self.first = min(number, before.first)

    def leave(self, now: int) -> None:
        """Give back the context to what follows; the step lasts until the next one begins, or ends here as the last."""
        if self.tree is not None:
            end_raised(now)
            self.tree.leave()
            self.left = now

    def resume(self) -> None:
        """Go on with the step that was left: what comes after its block belongs to it."""
        if self.last is not None and tracing.container is None:
            tracing.container = self.last.container

    def over(self) -> int:
        """Return when the open step ends if no other follows: with its block or the last stage after it; else now."""
        return monotonic_ns() if not self.left or self.goes_on() else max(self.left, tracing.last_end)

    def goes_on(self) -> bool:
        """Return whether a stage is open that began after the block of the last step."""
        return any(isinstance(one, Stage) and one.began >= self.left for one in tracing.open.copy())

    def open_elsewhere(self) -> StepSpans | None:
        """Return the open step if another thread is inside its block."""
        return None if self.left or self.thread == get_ident() else self.tree

    def close(self, now: int, error: BaseException | None = None, then: StepSpans | None = None) -> Reading | None:
        """End the open step's spans, and return the memory at its end.

        An error closes them with its status and leaves the step uncounted.
        """
        tree, self.tree = self.tree, None
        if tree is None:
            return None
        end_raised(now, error)
        tree.close(now, error, then)
        self.has_failed = error is not None and tree.container.status is not None
        if error is not None:
            self.began = 0
        return tree.container.after

    def overlap(self) -> None:
        """Let the open step go on in its own task or thread, which another one's step does not end."""
        if self.tree is not None:
            self.overlapping[self.tree] = self.began
            self.tree, self.began = None, 0

    def end_overlapping(self, tree: StepSpans, now: int, error: BaseException | None) -> None:
        """End a step that went on in its own task or thread."""
        began = self.overlapping.pop(tree, 0)
        if began:
            tree.close(now, error)
            if error is None:
                self._count(tree, began, now, tree.container.after)

    def count(self, now: int, memory: Reading | None) -> None:
        """Record the numbers of the step that lasted until ``now``."""
        began, self.began = self.began, 0
        if began and self.last is not None:
            self._count(self.last, began, now, memory)

    def _count(self, tree: StepSpans, began: int, now: int, memory: Reading | None) -> None:
        usage = None if probes.device is None else probes.device.usage_now_and_then()
        state.add(Deferred(step_points, (began, now, state.clock.anchor, tree.cpu_ns, memory, usage)))
        if self.own is not None and tree.container.trace is not None:
            attempt("count", "a step", self.own.end_step, tree.container.trace, began, now)
        for at_end in self.at_end:
            attempt("count", "a step", at_end, began, now)

    def end(self, error: BaseException | None = None) -> None:
        """End the loop and its open step now; tear-down begins."""
        now, self.is_over = self.over(), True
        open_until_now = self.tree is not None
        self.count(now, self.close(now, error))
        if open_until_now:
            open_phase(vocabulary.TEARDOWN, tracing.loops + (tracing.sibling << 16), now)


def end_left_step() -> None:
    """End the last step if its block was in this task or thread and is over: this process may be killed any moment."""
    loop = tracing.loop
    if loop is not None and loop.tree is not None and loop.left and loop.holder == _holder():
        now = loop.over()
        loop.count(now, loop.close(now))


def _restartable(before: Loop | None, of: Hashable) -> Loop | None:
    """Return the last loop that has begun a step, if it is of the same training."""
    if before is not None and before.number < 0:
        before = before.before
    return before if before is not None and before.of == of else None


def _name(number: int) -> str:
    """Name the loop of this number; workers of a run that train apart must not share traces, so theirs have an id."""
    identity = state.identity
    if number == 1 and identity.known and identity.is_worker and "rank" not in identifying.learned:
        tracing.sibling = identity.pid
    sibling = (str(tracing.sibling),) if tracing.sibling else ()
    return ".".join(("train", *sibling, *((str(number),) if number > 1 else ())))


class step:
    """Hold one step of a loop without a framework: ``with otel_rl.step(7):``, on every rank.

    Steps tile the loop: a step goes on after its block until the next one begins (evaluation, a checkpoint). Only the
    last one of a loop ends with its block, or with the last stage after it, and one that raises with its block. Steps
    whose blocks are in different tasks or threads may overlap; each then ends with its block, and has its own stages.
    The step's trace has the same id on every rank. A span of somebody else that happens to be current is linked to. A
    number that does not rise begins another loop (``train.2``), since two steps of one loop must not share a trace.
    Inside a compiled region it does nothing, nor in a process that works for a step of another one.

    Args:
        number: the step as your loop counts it, 0 or above.

    Raises:
        ValueError: the number is not a whole number, 0 or above.

    Emits: ``rl.loop`` (rank 0), ``rl.rank N``, ``rl.step.time``; samples, tokens and their rates as far as stages or
    requests report them (docs/requests.md). Cost: 30 us (``benchmarks/hotpath.py``).
    """

    __slots__ = ("_loop", "_tree", "number")

    def __init__(self, number: int) -> None:
        self._loop: Loop | None = None
        self._tree: StepSpans | None = None
        try:
            self.number = operator.index(number)
        except TypeError:
            self.number = -1
        if self.number < 0:
            raise ValueError(f"step({number!r}): the number of a step must be a whole number, 0 or above")

    def __enter__(self) -> Stage | None:
        if not state.on or hooking.is_compiling():
            return None
        with guard("begin a step"):
            if works_for_step():
                return current_stage()
            loop, holder = tracing.loop, _holder()
            if loop is not None and loop.holder not in (0, holder) and not loop.left:
                loop.overlap()
            if loop is None or self.number <= loop.number:
                if loop is not None:
                    loop.end()
                loop = tracing.loop = Loop()
                loop.own = OwnLoop()
            loop.begin(self.number)
            loop.holder = holder
            self._loop, self._tree = loop, loop.tree
            if loop.own is not None and loop.tree is not None and loop.tree.container.trace is not None:
                loop.own.begin_step(loop.tree.container.trace)
        return None if self._tree is None else self._tree.container

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop, tree = self._loop, self._tree
        if loop is None or tree is None or hooking.is_compiling():
            return
        with guard("end a step"):
            now = monotonic_ns()
            if tree in loop.overlapping:
                loop.end_overlapping(tree, now, error)
            elif error is None:
                loop.leave(now)
                if state.is_ending:
                    end_left_step()
            elif isinstance(error, SystemExit) and not error.code:
                loop.end(error)  # the program ends, and nothing has failed
            else:
                loop.close(now, error)


def _holder() -> int:
    running = getattr(sys.modules.get("asyncio"), "current_task", None)
    with suppress(RuntimeError):  # no event loop runs here
        task = running and running()
        if task is not None:
            return id(task)
    return get_ident()
