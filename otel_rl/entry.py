"""The parts are wired together here: ``instrument``, ``uninstrument`` and ``flush``."""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from otel_rl import vocabulary
from otel_rl.clock import monotonic, monotonic_ns
from otel_rl.config import LOADS_SDK, Config, ConfigurationError, ignored, unknown_variables
from otel_rl.flusher.thread import Flusher
from otel_rl.guard import guard, say
from otel_rl.hooks import Integration, ReturnHook
from otel_rl.hooks.install import Patches
from otel_rl.hooks.overrides import Overrides
from otel_rl.integrations.choice import NotPossibleError, wanted
from otel_rl.journal.otlp.wire import OtlpRequest
from otel_rl.probes import c_stacks, deferred
from otel_rl.probes.memory import probes, use_memory_reader
from otel_rl.process import mailbox
from otel_rl.process.hooked import hooking
from otel_rl.process.identity import RAY_WORKER, identifying
from otel_rl.process.state import state
from otel_rl.records import Count
from otel_rl.requests.memory import generation
from otel_rl.sidecar import settings
from otel_rl.trace.attempt import report_alone
from otel_rl.trace.carried import install_carriers
from otel_rl.trace.child_process import announce_run, join_parent, withdraw_run
from otel_rl.trace.current import CURRENT, leave_context
from otel_rl.trace.guest import end_guest_step
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage
from otel_rl.trace.tree import close_phase, open_setup

EXIT_LIMIT_S = 2.0
"""How long an exit waits for numbers of a device and for the journal; for the journal half of it at least."""
MEET_LIMIT_S, LOOK_S = 1.0, 0.02
"""How long an exit looks for the other ranks, where they are to be found yet, and how often."""
PROVIDERS = (
    "opentelemetry.sdk.trace:TracerProvider.__init__",
    "opentelemetry.sdk.metrics:MeterProvider.__init__",
    "opentelemetry.sdk._logs:LoggerProvider.__init__",
)
"""What a program makes that has OpenTelemetry of its own."""
COLLECT_S = 10.0
"""How often metrics of other libraries are collected."""
FORK_LIMIT_S = 0.05
IMPORT_LIMIT_S = 5.0
"""A fork waits so long for an import of the flusher: a child inherits its lock, and would hang at the same import."""


class _Fork(threading.local):
    """The fork that is going on in this thread: two threads may fork at once."""

    locked: Flusher | None = None
    """The flusher whose lock it has."""


class _Parts:
    """What ``instrument`` made and ``uninstrument`` takes apart."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.flusher: Flusher | None = None
        self.providers: Any = None
        self.collected_at = monotonic()
        self.fork = _Fork()
        self.exit_s = 0.0
        """How long exit handlers of the program may still wait for what they record after our own."""
        self.hooked = False
        """Exit and fork handlers are registered once per process; they cannot be taken back."""


_parts = _Parts()


def instrument(integrations: Iterable[str] | None = None) -> None:
    """Record this process: patch what is asked for (by default whatever gets imported) and journal what it does.

    Reads ``OTEL_*`` and ``OTEL_RL_*`` (``otel-rl doctor`` lists them). A second call does nothing. Works before and
    after the frameworks are imported.

    Args:
        integrations: names of ``otel_rl.integrations``, each with what it needs; default: ``OTEL_RL_INTEGRATIONS``.

    Raises:
        ConfigurationError: a setting has a value that it cannot have.
        NotPossibleError: an integration was asked for by name, and its package is missing or of an unsupported version.
        TypeError: what was asked for is no name.

    Cost: 0.3 s, most of it the import of the OpenTelemetry SDK. Then 1.6 to 1.7 ms of each step of TRL on one process,
    whatever the step's length; on two ranks 2.7 ms of CPU per rank and step, and 3.3 ms of time where both share two
    cores. That is below 1 % of steps of 0.17 s and of 0.33 s or longer (``benchmarks/README.md``).
    """
    _instrument(Config.from_env(), None if integrations is None else _names(integrations), is_asked=True)


def _names(asked: Any) -> tuple[str, ...]:
    names = tuple(asked) if isinstance(asked, Iterable) and not isinstance(asked, str) else (asked,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f'instrument({asked!r}): integrations are names, as in instrument(["trl"])')
    return names


def autoload() -> None:
    """Like ``instrument()``, for processes that did not ask for it themselves (``otel-rl run``): never raises.

    ``otel_rl.autoload`` calls it when the process imports a framework. Nothing is recorded before one is used, so that
    launchers and helpers leave no trace of their own.
    """
    with guard("instrument this process"):
        try:
            _instrument(Config.from_env(), None, is_asked=False)
        except (ConfigurationError, NotPossibleError) as error:
            say("otel_rl: %s; this process is not recorded", error)


def _instrument(config: Config, integrations: tuple[str, ...] | None, *, is_asked: bool) -> None:
    if state.on:
        _open_setup(is_asked=is_asked)  # `otel-rl run` was first, and did not know whether this process trains
        return
    if not config.active:
        return
    chosen = wanted(config.integrations, "OTEL_RL_INTEGRATIONS: ") if integrations is None else wanted(integrations)
    for name, nearest in unknown_variables():
        say("otel_rl: unknown setting %s is ignored%s", name, f"; did you mean {nearest}?" if nearest else "")
    for name, why in (ignored() | settings.ignored()).items():
        say("otel_rl: %s is ignored: %s", name, why)
    with guard("find the working directory"):  # it may have been removed
        config = replace(config, directory=Path.cwd() / config.directory)
    try:
        _switch_on(config, chosen)
        _open_setup(is_asked=is_asked)
    except BaseException:
        uninstrument()
        raise


def _switch_on(config: Config, chosen: Iterable[Integration]) -> None:
    state.start(config, _wake)
    state.journal = _journal
    tracing.open_setup = open_setup
    install_carriers()
    overrides = Overrides(_parts.patches)
    hooking.follow, hooking.hook_replacements = overrides.follow, overrides.hook_replacements
    hooking.arrived = _parts.patches.arrived
    use_memory_reader()
    with guard("prepare the stacks in C"):
        c_stacks.install()
    announce_run()
    _hook_process()
    if LOADS_SDK not in ignored():
        with guard("stand in for a missing provider"):
            from otel_rl.sdk import Providers, yield_to_provider

            _parts.providers = Providers()
            _parts.providers.place()
            for target in PROVIDERS:
                _parts.patches.install(ReturnHook(target=target, after=yield_to_provider, is_constructor=True))
    for integration in chosen:
        install(integration)


def install(integration: Integration) -> None:
    """Put the hooks of an integration in their places, or as soon as its package is imported."""
    for hook in integration.hooks:
        _parts.patches.install(hook)
    for attachment in integration.attachments:
        _parts.patches.attach(attachment)
    packages = {hook.target.partition(":")[0].partition(".")[0] for hook in integration.hooks}
    for hook in integration.arriving:
        _parts.patches.expect(hook, packages)
    hooking.roles.update(integration.roles)
    if integration.role_of is not None:
        hooking.role_of.append(integration.role_of)


def _open_setup(*, is_asked: bool) -> None:
    """Begin the set-up of a process that asked to be recorded; a helper's begins with what it records first."""
    if is_asked and not tracing.loops and not _is_worker():
        open_setup()


def uninstrument() -> None:
    """Undo every patch exactly, journal what was recorded, and stop."""
    if not state.on:
        return
    _finish()
    withdraw_run()
    state.pause()
    _parts.patches.undo()
    if _parts.providers is not None:
        _parts.providers.remove()
    _parts.providers = _parts.flusher = None
    if probes.reader is not None:
        probes.reader.close()
    c_stacks.uninstall()
    state.reset()


def flush(timeout_s: float = 2.0) -> bool:
    """Journal everything recorded until now.

    Args:
        timeout_s: how long to wait for the flusher at most, s.

    Returns:
        True when it is in the journal. False when time ran out, the disk refuses, or some of it waits until more is
        known of this process: metrics for at most 10 s where there is no step, and on a rank above 0 everything until
        its attempt is known. Nothing is lost by that, unless the process is killed.
    """
    flusher = _parts.flusher
    if flusher is None or flusher.pid != os.getpid():
        return not state.queue
    _parts.collected_at = -inf
    with guard("take what has come from a device"):
        deferred.resolve()
    with guard("flush"):  # what is no time is no reason to raise
        return flusher.flush(timeout_s)
    return False


# --- process life -----------------------------------------------------------------------------------------------------


def _wake() -> None:
    join_parent()
    flusher = Flusher(_foreign)
    _parts.flusher = flusher
    flusher.start()
    mailbox.start()


def _write_late() -> None:
    """Journal what is recorded after our exit handler: by those that the program had registered before.

    Nothing of ours runs after the last of them, so whoever ends an outermost stage waits for the journal.
    """
    state.awake, state.wake_again_ns = False, 0  # the next record comes here, too
    if _parts.flusher is None:
        _parts.flusher = Flusher(_foreign)  # an exit may start no thread: it works on those that ask
    flusher = _parts.flusher
    if flusher.is_this_thread():
        return
    if _parts.exit_s <= 0 or not all(one.ended for one in tracing.open.copy()):
        flusher.rouse()
        return
    began = monotonic()
    flusher.stop(_parts.exit_s, rests=True)
    _parts.exit_s -= monotonic() - began


def _journal(then: Callable[[], object]) -> None:
    flusher = _parts.flusher
    if flusher is None or flusher.pid != os.getpid():
        then()
    else:
        flusher.ask(then)


def _foreign(spans: list[Any], resource: Any) -> list[OtlpRequest]:
    providers = _parts.providers
    if providers is None:
        return []
    requests: list[OtlpRequest] = providers.encode(spans, resource) if spans else []
    if monotonic() - _parts.collected_at > COLLECT_S:
        _parts.collected_at = monotonic()
        requests += providers.collect(resource)
    return requests


def _hook_process() -> None:
    if _parts.hooked:
        return
    _parts.hooked = True
    atexit.register(_finish_at_exit)
    multiprocessing.util.register_after_fork(_parts, _finish_in_worker)
    if _is_worker():
        _finish_in_worker(_parts)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )


def _is_worker() -> bool:
    """Return whether multiprocessing started this process; while it imports the program it names no parent yet."""
    is_starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    return is_starting or multiprocessing.parent_process() is not None


def _finish_in_worker(parts: object) -> None:
    """A multiprocessing child ends with os._exit, which runs these finalizers but no atexit handler."""
    multiprocessing.util.Finalize(None, _finish_at_exit, exitpriority=100)


def _finish_at_exit() -> None:
    """Journal everything; handlers of the program that were registered before this one come later."""
    if state.on:
        _finish(rests=True)
        state.wake, state.awake, state.wake_again_ns = _write_late, False, 0
        state.is_ending, _parts.exit_s = True, EXIT_LIMIT_S


def _finish(*, rests: bool = False) -> None:
    began = monotonic()
    with guard("read the last numbers of a device"):
        deferred.drain()
    with guard("account for the streams of API clients that are still open"):
        for stream in _values(generation.streams):
            stream.left()
    with guard("count the requests that never ended"):
        _count_unfinished()
    with guard("finish"):
        loop = tracing.loop
        has_failed = loop is not None and loop.last is not None and loop.last.container.status is not None
        elsewhere = None if loop is None else loop.open_elsewhere()
        if loop is not None and elsewhere is not None:
            state.pause()  # it begins no further step meanwhile
            _truncate(kept=(elsewhere.root, elsewhere.container))
            elsewhere.container.set_attribute(vocabulary.TRUNCATED, True)
            loop.close(monotonic_ns(), _uncaught() or SystemExit())  # without tear-down: the loop is not over
        elif loop is not None:
            raised = None if loop.tree is None or loop.left else _uncaught()  # inside a step that has no block of ours
            has_failed = has_failed or raised is not None
            loop.end(raised)
        end_guest_step()
        _meet()
        if state.awake:
            report_alone()
        phase = tracing.phase
        close_phase(monotonic_ns(), None if has_failed else _uncaught())
        if phase is not None:
            tracing.container = phase.container  # for what exit handlers record after this one
        _truncate()
        _parts.collected_at = -inf  # what others counted since the last time must not be lost
    if _parts.flusher is not None and _parts.flusher.pid == os.getpid():
        with guard("close the journal"):
            _parts.flusher.stop(max(EXIT_LIMIT_S - (monotonic() - began), EXIT_LIMIT_S / 2), rests=rests)


def _meet() -> None:
    """Wait a little for the other ranks: those of a short training may begin when it is over here."""
    flusher, until = _parts.flusher, monotonic() + MEET_LIMIT_S
    while (
        flusher is not None
        and flusher.pid == os.getpid()
        and identifying.rendezvous is not None
        and monotonic() < until
    ):
        flusher.flush(until - monotonic())
        threading.Event().wait(LOOK_S)


def _truncate(kept: tuple[object, ...] = ()) -> None:
    for left in tracing.open.copy():
        if isinstance(left, Stage) and left not in kept:
            left.set_attribute(vocabulary.TRUNCATED, True)
            left.close(monotonic_ns())


def _uncaught() -> BaseException | None:
    """Find the exception that ended the program.

    A test runner or a shell left one of theirs there; a worker of Ray runs into one after its tasks.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    passed = None if error is None or hasattr(sys, "ps1") else error.__traceback__
    frame = passed and passed.tb_frame
    if frame is None or os.path.basename(frame.f_code.co_filename) == RAY_WORKER:
        return None
    return error if frame.f_globals.get("__name__") in {"__main__", "runpy"} else None


def _values(known: WeakKeyDictionary[Any, Any]) -> list[Any]:
    """Return the values; ``values()`` fails if another thread adds to it meanwhile."""
    keys = [key for one in known.keyrefs() if (key := one()) is not None]
    return [value for key in keys if (value := known.get(key)) is not None]


def _count_unfinished() -> None:
    """Requests that are still inside an engine of this process: their end will not be seen."""
    unfinished = sum(engine.unfinished for engine in generation.engines.copy())
    if unfinished:
        state.add(Count(vocabulary.BAD_REQUESTS, unfinished, ((vocabulary.REASON, "unfinished"),)))


def _before_fork() -> None:
    """Let a cycle of the flusher end, so that the child does not inherit half of one; never wait for a slow disk."""
    flusher, until = _parts.flusher, monotonic() + IMPORT_LIMIT_S
    while flusher is not None:
        if flusher.lock.acquire(timeout=FORK_LIMIT_S):
            _parts.fork.locked = flusher
            return
        if monotonic() > until or not flusher.is_importing():
            return


def _after_fork_in_parent() -> None:
    locked, _parts.fork.locked = _parts.fork.locked, None
    if locked is not None:
        locked.lock.release()


def _after_fork_in_child() -> None:
    _parts.fork.locked = None
    _parts.patches.in_child()
    if _parts.flusher is not None:
        _parts.flusher.abandon()
        _parts.flusher = None
    if state.on:
        state.wake, state.is_ending = _wake, False
        if tracing.inherited is None:
            CURRENT.set(None)  # what is current there has no place here
            leave_context()
        use_memory_reader(probes.read_device)
        if _parts.providers is not None:
            _parts.providers.in_child()
