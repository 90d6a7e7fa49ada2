"""Hooks that call functions of ours before and after a call, and open a stage for it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Bind, Kwargs
from otel_rl.hooks.hook import After, Before, Covered, Hook
from otel_rl.process.hooked import hooking
from otel_rl.process.memory import Memory
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.trace.current import CURRENT
from otel_rl.trace.importlib_bootstrap import not_counted
from otel_rl.trace.stage import Stage

Capture = Callable[[Args, Kwargs, Any], dict[str, Value] | None]
"""``(args, kwargs, result)``: returns attributes of the stage; runs guarded after the host's call."""
Describe = Callable[[Args, Kwargs], dict[str, Value]]
"""``(args, kwargs)``: returns attributes of the stage; runs guarded before the host's call."""
Failed = Callable[[Args, Kwargs, BaseException], object]
"""``(args, kwargs, error)``: runs guarded after a call that raised."""


@dataclass(frozen=True, kw_only=True)
class CallbackHook(Hook):
    """Functions of ours that run before a call, after one that returned, and after one that raised."""

    before: Before | None = None
    after: After | None = None
    failed: Failed | None = None
    during: tuple[Memory, str] | None = None
    """A memory and the name of its field: while that is None, calls only pass."""

    def __post_init__(self) -> None:
        """Refuse a field that the memory does not have: each call would fail."""
        if self.during is not None and not hasattr(*self.during):
            memory, name = self.during
            raise ValueError(f"{self.target}: {type(memory).__name__} has no field {name!r}")

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``; a coroutine function where it is one."""
        make = _wrap_async if inspect.iscoroutinefunction(original) else _wrap_sync
        return make(self, original, bind)


@dataclass(frozen=True, kw_only=True)
class StageHook(CallbackHook):
    """A stage that lasts as long as the call, and the functions of a ``CallbackHook``.

    A call inside a stage of the same name belongs to that stage: nested and recomputed calls count once. ``before``
    runs before the stage begins, ``after`` when it has ended.
    """

    stage: str | Before
    """Name of the stage, or a function ``(args, kwargs)`` that returns it; None means no stage this time."""
    attributes: tuple[tuple[str, Value], ...] | Describe = ()
    """What the stage has from its begin on, however the call ends; or a function that returns it."""
    capture: Capture | None = None

    def begin(self, args: Args, kwargs: Kwargs) -> Stage | None:
        """Open the stage of a call, unless the current one has the same name."""
        if self.before is not None:
            self.before(args, kwargs)
        name = self.stage if isinstance(self.stage, str) else self.stage(args, kwargs)
        if not isinstance(name, str):
            return None
        parent = CURRENT.get()
        if parent is not None and parent.name == name and not parent.ended:
            return None
        if callable(self.attributes):
            attributes = attempt("describe", self.target, self.attributes, args, kwargs)
        else:
            attributes = dict(self.attributes) if self.attributes else None
        opened = Stage(name, attributes, coarse=True)
        opened.open()
        return opened


@dataclass(frozen=True, kw_only=True)
class ReturnHook(Hook):
    """One function of ours after each call that returned: for what is called often, and is no coroutine."""

    after: After
    is_constructor: bool = False
    """Torch compiles nothing of the call: for constructors, which it would compile only because of our frame."""

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``."""
        return _wrap_return(self, original, bind)


# Between matrix products, with cold caches, each call of a function costs 1 to 4 us (``benchmarks/cold.py``), and a
# trainer makes 60 hooked calls a step: what can be known beforehand is, and no function is called that need not be.


@not_counted
def _wrap_sync(hook: CallbackHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    target, before, after, capture = hook.target, hook.before, hook.after, getattr(hook, "capture", None)
    begin, by_name, early = getattr(hook, "begin", None), hook.by_name, _early(hook, bind)
    memory, field = hook.during or (None, "")
    covered: Covered | None = None

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_off = not state.on or (field and getattr(memory, field) is None)
        if (
            is_off
            or hooking.is_tracing()
            or hooking.compiler._is_compiling_flag
            or (covered is not None and attempt("check", target, covered, args))
        ):
            return original(*args, **kwargs)
        span, given, named = None, args, kwargs
        if (kwargs or by_name) and early is not None:
            given, named = early(args, kwargs)
        if begin is not None:
            span = attempt("begin", target, begin, given, named)
        elif before is not None:
            attempt("begin", target, before, given, named)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _fail(hook, bind, span, args, kwargs, error)
            raise
        if span is not None:
            end, described = monotonic_ns(), None
            try:
                if capture is not None:
                    described = attempt("describe", target, capture, given, named, result)
            finally:  # a handler of a signal may raise anywhere
                attempt("end", target, span.close, end, described)
        if after is not None:
            attempt("follow", target, after, given, named, result)
        return result

    return call


@not_counted
def _wrap_async(hook: CallbackHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    target, after, capture = hook.target, hook.after, getattr(hook, "capture", None)
    begin, by_name, early = getattr(hook, "begin", hook.before), hook.by_name, _early(hook, bind)
    is_stage, (memory, field) = isinstance(hook, StageHook), hook.during or (None, "")
    covered: Covered | None = None

    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        if not state.on or (field and getattr(memory, field) is None):
            return await original(*args, **kwargs)
        if covered is not None and attempt("check", target, covered, args):
            return await original(*args, **kwargs)
        given, named = args, kwargs
        if (kwargs or by_name) and early is not None:
            given, named = early(args, kwargs)
        begun = attempt("begin", target, begin, given, named) if begin is not None else None
        span = begun if is_stage else None
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            _fail(hook, bind, span, args, kwargs, error)
            raise
        if span is not None:
            end, described = monotonic_ns(), None
            try:
                if capture is not None:
                    described = attempt("describe", target, capture, given, named, result)
            finally:  # a handler of a signal may raise anywhere
                attempt("end", target, span.close, end, described)
        if after is not None:
            attempt("follow", target, after, given, named, result)
        return result

    return call


@not_counted
def _wrap_return(hook: ReturnHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    target, after, is_constructor = hook.target, hook.after, hook.is_constructor

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = (hooking.uncompiled(original) if is_constructor else original)(*args, **kwargs)
        if state.on:
            if kwargs and bind is not None:
                args, kwargs = bind(args, kwargs)
            attempt("follow", target, after, args, kwargs, result)
        return result

    return call


def _early(hook: CallbackHook, bind: Bind | None) -> Bind | None:
    """Return ``bind`` if any function sees the arguments of a call that does not fail."""
    names = ("stage", "attributes", "before", "capture", "after", "submitted")
    functions = [getattr(hook, name, None) for name in names]
    return bind if any(map(callable, functions)) else None


def _fail(
    hook: CallbackHook, bind: Bind | None, span: Stage | None, args: Args, kwargs: Kwargs, error: BaseException
) -> None:
    if span is not None:
        attempt("end", hook.target, span.__exit__, type(error), error, error.__traceback__)
    if hook.failed is not None:
        given, named = (args, kwargs) if bind is None else bind(args, kwargs)
        attempt("follow", hook.target, hook.failed, given, named, error)
