"""Hooks on calls between processes: the caller sends a carrier along, and the process that is called works below it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Bind, Kwargs
from otel_rl.hooks.hook import Hook
from otel_rl.process.carrier import Carrier
from otel_rl.process.state import state
from otel_rl.trace.importlib_bootstrap import not_counted

Inject = Callable[[Args, Kwargs, Carrier], tuple[Args, Kwargs]]
"""``(args, kwargs, carrier)``: returns the arguments with which the call goes out."""
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

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``; a coroutine function where it is one."""
        make = _wrap_coroutine if inspect.iscoroutinefunction(original) else _wrap_function
        return make(self, original)

    def outgoing(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the arguments with which the host's function is called."""
        if self.inject is None:
            return args, kwargs
        return attempt("send a carrier with", self.target, self._inject, args, kwargs) or (args, kwargs)

    def _inject(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs] | None:
        carrier = Carrier.current()
        return None if carrier is None or self.inject is None else self.inject(args, kwargs, carrier)


class _Incoming:
    """The carrier of a call that came in, in use while the call runs; an error of ours is kept from the host."""

    def __init__(self, hook: RemoteHook, args: Args, kwargs: Kwargs) -> None:
        self._hook, self._args, self._kwargs = hook, args, kwargs
        self._used: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        self._used = attempt("take the carrier of", self._hook.target, self._use)

    def _use(self) -> AbstractContextManager[object] | None:
        carrier = None if self._hook.extract is None else self._hook.extract(self._args, self._kwargs)
        used = None if carrier is None else carrier.use()
        if used is not None:
            used.__enter__()
        return used

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._used is not None:
            attempt("give back the carrier of", self._hook.target, self._used.__exit__, kind, error, trace)


@not_counted
def _wrap_function(hook: RemoteHook, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not state.on:
            return original(*args, **kwargs)
        with _Incoming(hook, args, kwargs):
            args, kwargs = hook.outgoing(args, kwargs)
            return original(*args, **kwargs)

    return call


@not_counted
def _wrap_coroutine(hook: RemoteHook, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if not state.on:
            return await original(*args, **kwargs)
        with _Incoming(hook, args, kwargs):
            args, kwargs = hook.outgoing(args, kwargs)
            return await original(*args, **kwargs)

    return call
