"""Hooks on calls between processes: the caller sends a carrier along, and the process that is called works below it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Bind, Kwargs
from otel_rl.hooks.hook import Hook
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.trace.importlib_bootstrap import not_counted

Inject = Callable[[Args, Kwargs, Any], tuple[Args, Kwargs]]
"""``(args, kwargs, carrier)``: returns the arguments with which the call goes out. Nothing is bound to positions."""
Extract = Callable[[Args, Kwargs], Carrier | None]
"""``(args, kwargs)``: returns the carrier with which a call came in, or None where it has none."""


@dataclass(frozen=True, kw_only=True)
class RemoteHook(Hook):
    """A call to another process, or from one.

    ``inject`` changes what goes out, so the receiver must know how to take it: a header, a field of a message, a
    keyword that a hook at the other end removes. Without an open step the call goes out as it is. What runs inside a
    call that came in is recorded in the step of its caller, below the span that was open there.
    """

    inject: Inject | None = None
    extract: Extract | None = None
    needs_step: bool = True
    """Whether ``inject`` is left out while there is no carrier; else it gets None for it."""

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``; a coroutine function where it is one."""
        make = _wrap_coroutine if inspect.iscoroutinefunction(original) else _wrap_function
        return make(self, original, bind)

    def begin(self, stack: ExitStack, bind: Bind | None, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Use the carrier of a call that came in until ``stack`` ends; return the arguments with which it goes on."""
        if self.extract is not None:
            given, named = (args, kwargs) if bind is None else bind(args, kwargs)
            attempt("take the carrier of", self.target, self._use, stack, self.extract, given, named)
        sent = None if self.inject is None else attempt("send a carrier with", self.target, self._send, args, kwargs)
        return sent or (args, kwargs)

    def _use(self, stack: ExitStack, extract: Extract, args: Args, kwargs: Kwargs) -> None:
        carrier = extract(args, kwargs)
        if carrier is not None:
            used = carrier.use()
            used.__enter__()
            stack.push(functools.partial(self._leave, used))

    def _leave(self, used: AbstractContextManager[object], *error: Any) -> None:
        attempt("give back the carrier of", self.target, used.__exit__, *error)

    def _send(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        carrier = Carrier.current()
        if self.inject is None or (carrier is None and self.needs_step):
            return None
        args, kwargs = self.inject(args, dict(kwargs), carrier)  # what fails half-way has changed a copy
        return (*args,), {**kwargs}


@not_counted
def _wrap_function(hook: RemoteHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not state.on:
            return original(*args, **kwargs)
        with ExitStack() as stack:
            args, kwargs = hook.begin(stack, bind, args, kwargs)
            return original(*args, **kwargs)

    return call


@not_counted
def _wrap_coroutine(hook: RemoteHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if not state.on:
            return await original(*args, **kwargs)
        with ExitStack() as stack:
            args, kwargs = hook.begin(stack, bind, args, kwargs)
            return await original(*args, **kwargs)

    return call
