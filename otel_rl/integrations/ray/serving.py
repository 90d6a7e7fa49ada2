"""The side that is called: whose call it is, who this actor is, and what must be on disk before the call returns."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
from collections.abc import Callable
from threading import Event
from typing import Any

from otel_rl import vocabulary
from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt, guard
from otel_rl.hooks import Args, Kwargs, RemoteHook
from otel_rl.hooks.hook import wrap
from otel_rl.ids import random_bits
from otel_rl.integrations.ray.calling import KEYWORD, OURS, calling
from otel_rl.process.carrier import Carrier
from otel_rl.process.hooked import hooking
from otel_rl.process.identity import RANK, identifying
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import Stage, innermost
from otel_rl.trace.steps import end_left_step

WAIT_S = 1.0
"""How long a call waits for the journal at most."""
GAP_NS = 10_000_000
"""Calls that follow each other faster ask for the journal without waiting: a wait takes 0.5 ms."""
JOB = "system", "system_version", "algorithm", "model_name"
"""What only the process that holds the steps knows."""


# --- who calls --------------------------------------------------------------------------------------------------------


def _called(args: Args, kwargs: Kwargs) -> Carrier | None:
    """Read the carrier of a call, and what the caller knows of the job."""
    context = kwargs.get(KEYWORD)
    said = context.get(OURS) if isinstance(context, dict) else None
    if said is None:
        return None
    if not identifying.frozen:
        state.identify(**{key: said[key] for key in JOB if said[key] != getattr(state.identity, key)})
    return Carrier(**said["carrier"]) if said["carrier"] else None


def _created(args: Args, kwargs: Kwargs) -> Carrier | None:
    """Learn which actor this process holds, from the call that makes it."""
    said = (kwargs.get(KEYWORD) or {}).get(OURS, {})
    calling.sent_ns = said.get("sent_ns")
    attempt("learn", "which actor this is", know_actor, type(args[0]), said.get("number"))
    return _called(args, kwargs)


CALLED = RemoteHook(target="ray:actor.method", extract=_called)
CREATED = RemoteHook(target="ray:actor.__init__", extract=_created)


def know_actor(kind: type, number: int | None) -> None:
    """Take the class for the role, unless an integration has a word for it.

    The rank is the launcher's, else the first number in the name, else the creator's. Ray restarts an actor with the
    number that it had.
    """
    import ray

    context = ray.get_runtime_context()
    name = context.get_actor_name() or ""
    in_name = re.search(r"\d+", name)
    rank = int(in_name[0]) if in_name else number
    known: dict[str, Any] = {vocabulary.ACTOR_ID: context.get_actor_id(), vocabulary.ACTOR_NAME: name}
    extra = {**state.identity.extra, **{key: value for key, value in known.items() if value}}
    state.inherit(role=_role_of(kind, name), extra=extra)  # also where the process has worked for tasks before
    if rank is None or RANK in os.environ:
        return
    if rank:
        state.inherit(rank=rank)
    else:
        state.identify(rank=0)  # if it holds steps, they are the job's


def _role_of(kind: type, name: str) -> str:
    found = (attempt("read", "the role of an actor", role_of, kind, name) for role_of in hooking.role_of)
    by_class = (hooking.roles.get(base.__name__) for base in kind.__mro__)
    return next((role for role in (*found, *by_class) if role), kind.__name__)


# --- what is called ---------------------------------------------------------------------------------------------------


def arrive(args: Args, kwargs: Kwargs, result: type) -> None:
    """Hook the class of an actor before its methods are looked up."""
    hooking.arrived(result)


def receive(args: Args, kwargs: Kwargs, carrier: object) -> tuple[Args, Kwargs]:
    """Let Ray call a method of an actor's class through us."""
    manager, name, method, *rest = args
    return (manager, name, serving(name, method), *rest), kwargs


def serving(name: str, method: Any) -> Any:
    """Return a method that uses its caller's carrier; what Ray gives no carrier, and its own methods, stay."""
    is_generator = inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method)
    if inspect.ismethod(method) or is_generator or name.startswith("__ray_"):
        return method
    return wrap(CREATED, journaled(started(method))) if name == "__init__" else wrap(CALLED, journaled(method))


def serve_task(function: Callable[..., Any], said: Any) -> Callable[..., Any]:
    """Return a task's function that uses its caller's carrier."""
    return functools.partial(wrap(CALLED, journaled(function)), **{KEYWORD: {OURS: said}})


def started(constructor: Callable[..., Any]) -> Callable[..., Any]:
    """Return a constructor after which it is known how long this actor took to start."""

    def follow() -> None:
        if state.on:
            attempt("time", "the start of an actor", _time_start)

    if inspect.iscoroutinefunction(constructor):  # of an actor with coroutines: Ray awaits it

        @functools.wraps(constructor)
        async def construct(*args: Any, **kwargs: Any) -> None:
            await constructor(*args, **kwargs)
            follow()
    else:

        @functools.wraps(constructor)
        def construct(*args: Any, **kwargs: Any) -> None:
            constructor(*args, **kwargs)
            follow()

    return construct


def _time_start() -> None:
    """Keep the stage of the start until the actor records something else: what only moves data records nothing.

    It begins with the process, or when the actor was asked for, if that is later.
    """
    caller = innermost()
    if calling.sent_ns is None or caller is None or caller.trace is None:
        return
    start = calling.start = Stage(vocabulary.SETUP_PROCESS)
    start.trace, start.parent_id, start.span_id = caller.trace, caller.span_id, random_bits(64) or 1
    start.ended = monotonic_ns()
    start.began = max(state.started_ns, min(calling.sent_ns - state.clock.anchor, start.ended))


def _theirs(kwargs: Kwargs) -> Kwargs:
    """Return the keywords that a call has without us.

    Ray takes its keyword out again only where it has wrapped the method. A method that replaces such a one by
    ``functools.wraps`` has its signature, and takes no such keyword.
    """
    context = kwargs.get(KEYWORD)
    if not isinstance(context, dict) or OURS not in context:
        return kwargs
    rest = {name: value for name, value in context.items() if name != OURS}
    return {**{name: value for name, value in kwargs.items() if name != KEYWORD}, **({KEYWORD: rest} if rest else {})}


# --- before it returns ------------------------------------------------------------------------------------------------


def journaled(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose records are on disk when its caller gets the result: then Ray may kill this process.

    It gets the arguments that it would get without us.
    """
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **_theirs(kwargs))
            finally:
                if _has_recorded():
                    with guard("journal an actor's call"):
                        await _journaled_later()
    else:

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **_theirs(kwargs))
            finally:
                if _has_recorded():
                    attempt("journal", "an actor's call", _journal)

    return call


def _has_recorded() -> bool:
    """Return whether something was recorded since a call asked for the journal last. A call's last step ends first."""
    if not state.on:
        return False
    attempt("end", "the last step of an actor's call", end_left_step)
    has_recorded = bool(state.queue) or tracing.last_end > calling.asked_ns
    if has_recorded and calling.start is not None:
        start, calling.start = calling.start, None
        state.add(start)
    return has_recorded


def _is_wait_due() -> bool:
    now = calling.asked_ns = monotonic_ns()
    if now - calling.waited_ns < GAP_NS:
        return False
    calling.waited_ns = now
    return True


def _journal() -> None:
    written, is_due = Event(), _is_wait_due()
    state.journal(written.set)
    if is_due:
        written.wait(WAIT_S)


async def _journaled_later() -> None:
    """Wait without blocking the loop, on which other calls run."""
    loop = asyncio.get_running_loop()
    written, is_due = loop.create_future(), _is_wait_due()

    def settle() -> None:
        if not written.done():
            written.set_result(None)

    state.journal(functools.partial(loop.call_soon_threadsafe, settle))
    if is_due:
        await asyncio.wait([written], timeout=WAIT_S)
