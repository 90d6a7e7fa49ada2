"""What to record around a function of another package, and the function that stands in its place and does so."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic_ns
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from otel_rl.guard import attempt, guard
from otel_rl.hooks.arguments import Bind, binder
from otel_rl.hooks.collective import around_collective
from otel_rl.hooks.generators import Begin, First, asked, watched
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.requests.memory import generation
from otel_rl.trace.current import CURRENT
from otel_rl.trace.importlib_bootstrap import not_counted
from otel_rl.trace.stage import Stage, current_stage

Capture = Callable[[tuple[Any, ...], dict[str, Any], Any], dict[str, Value] | None]
"""``(args, kwargs, result) -> attributes``, which become the stage's; runs guarded after the host's call."""
Say = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Value]]
"""``(args, kwargs) -> attributes`` of the stage; runs guarded before the host's call."""
Before = Callable[[tuple[Any, ...], dict[str, Any]], object]
"""``(args, kwargs)``; runs guarded before the host's call. For a ``stage``: its name, or None for no stage now."""
Covered = Callable[[tuple[Any, ...]], bool]
"""``(args)``: whether the call only passes, because another replacement of the same hook is around it."""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One function of another package and what to record around it.

    The host's arguments, result and exception pass through unchanged; whatever we do around them is guarded. A call
    below a stage of the same name belongs to that stage (nested and recomputed calls count once).

    The functions here get ``args`` with every argument that has a position in the target's signature, also where the
    caller gave it by keyword, and ``kwargs`` with what was given by keyword.
    """

    target: str
    """``"package.module:function"`` or ``"package.module:Class.method"``."""
    stage: str | Before | None = None
    """Name of the stage around the call, or a function that says it."""
    attributes: tuple[tuple[str, Value], ...] | Say = ()
    """What every such stage says from its begin on, however the call ends; or a function that knows it of a call."""
    before: Before | None = None
    capture: Capture | None = None
    after: Capture | None = None
    """Like ``capture``, behind the end of the stage; its result is ignored."""
    failed: Callable[[tuple[Any, ...], dict[str, Any], BaseException], object] | None = None
    """Called with the host's exception."""
    during: str = ""
    """Name of what has to be going on, a field of ``state.training`` that is not None then; else the call passes."""
    marks: bool = False
    """Only append when each call returned (monotonic ns) to ``generation.thread.marks``, if that is a list: for
    what is called for each token, is never compiled and no coroutine. Nothing of ours is called that could fail."""
    behind: Callable[[tuple[Any, ...]], object] | None = None
    """Only called, guarded, with the positional arguments of each call that has returned: for what is called for each
    request, is never compiled and no coroutine."""
    made: Capture | None = None
    """Only called, guarded, behind each call: for constructors in which torch compiles nothing."""
    watch: Begin | None = None
    """Watches the call instead, from its begin to its end, and item by item where the target is a generator."""
    asked: First | None = None
    """Watches an asynchronous generator from its first item on, since that is most often its last; ``before`` sees
    its arguments when it begins."""
    collective: int | None = None
    """This is a collective, or waits for one: a row instead of a stage; the position of this rank's input."""
    by_name: bool = False
    """``kwargs`` holds every argument that was given, by its name: for positions that differ between versions."""
    optional: bool = False
    """The target need not exist in every supported version."""

    def like(self, other: Hook) -> bool:
        """Whether the other hook does the same with a function of the same name elsewhere."""
        names = {hook.target.replace(":", ".").rpartition(".")[2] for hook in (self, other)}
        return len(names) == 1 and replace(self, target="") == replace(other, target="")


replacements: WeakKeyDictionary[Any, Hook] = WeakKeyDictionary()
"""The hook of each function that stands, or has stood, in the place of another one."""


def wrap(hook: Hook, original: Any, base: Any = None) -> Any:
    """Make the replacement of a function or a static or class method; a plain closure, so that Ray can pickle it.

    Args:
        hook: what to record.
        original: the function.
        base: the hooked method that it overrides.
    """
    if isinstance(original, (staticmethod, classmethod)):
        return type(original)(wrap(hook, original.__func__, base))
    replacement = _replacement(hook, original, binder(original, base, by_name=hook.by_name))
    replacements[replacement] = hook
    return replacement


def hook_of(value: Any) -> Hook | None:
    """Return the hook of a function or method that is a replacement of ours, else None."""
    function = getattr(value, "__func__", value)
    return replacements.get(function) if type(function) is FunctionType else None


def can_be_covered(replacement: Any) -> bool:
    """Return whether ``cover`` has an effect on a replacement."""
    return type(replacement) is FunctionType and "covered" in replacement.__code__.co_freevars


def cover(replacement: Any, name: str) -> None:
    """Let a replacement pass calls of which another replacement of its hook is around, or would be.

    Decided by the object at each call: what it has under ``name`` is recorded, nothing that this calls in turn. The
    replacements of most methods are never covered, and need not look.
    """
    if can_be_covered(replacement):
        cells = dict(zip(replacement.__code__.co_freevars, replacement.__closure__, strict=True))
        cells["covered"].cell_contents = functools.partial(_is_covered, replacement, name)


def _is_covered(replacement: Any, name: str, args: tuple[Any, ...]) -> bool:
    hook = replacements.get(replacement)
    if hook is None or not args:
        return False
    found = _found(args[0], name)
    if found is not replacement:
        return hook_of(found) is hook
    stage = current_stage()  # an object of another class may call it for one whose call is recorded
    return stage is not None and stage.name == hook.stage


def _found(owner: Any, name: str) -> Any:
    """Return the function that an object has under a name, its own before those of its classes."""
    for space in (owner, *type(owner).__mro__):
        value = getattr(space, "__dict__", {}).get(name)
        if value is not None:
            return getattr(value, "__func__", value)
    return None


def _replacement(hook: Hook, original: Any, bind: Bind | None) -> Any:
    if hook.collective is not None:
        return around_collective(hook.target, hook.collective, hook.before, original, bind)
    if hook.watch is not None:
        return watched(hook.target, hook.watch, original, bind)
    if hook.asked is not None:
        return asked(hook.target, hook.before, hook.asked, original, bind)
    if hook.marks or hook.behind is not None or hook.made is not None:
        return _wrap_light(hook, original, bind)
    make = _wrap_async if inspect.iscoroutinefunction(original) else _wrap_sync
    return make(hook, original, bind)


# Between matrix products, with cold caches, each call of a function costs 1 to 4 us (``benchmarks/cold.py``), and a
# trainer makes 60 hooked calls a step: what can be known beforehand is, and no function is called that need not be.


@not_counted
def _wrap_sync(hook: Hook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    target, before, capture, after, during = hook.target, hook.before, hook.capture, hook.after, hook.during
    is_stage, by_name, early = hook.stage is not None, hook.by_name, _early(hook, bind)
    covered: Covered | None = None

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        is_off = not state.on or (during and getattr(state.training, during) is None)
        if (
            is_off
            or hooking.is_tracing()
            or hooking.compiler._is_compiling_flag
            or (covered is not None and attempt("look at", target, covered, args))
        ):
            return original(*args, **kwargs)
        span, given, named = None, args, kwargs
        if (kwargs or by_name) and early is not None:
            given, named = early(args, kwargs)
        if is_stage:
            span = attempt("begin", target, _begin, hook, given, named)
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

    return around


def _wrap_light(hook: Hook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    """Do nothing before the call."""
    if hook.made is not None:
        return _wrap_made(hook.target, hook.made, original, bind)
    return _wrap_marks(original) if hook.behind is None else _wrap_behind(hook.target, hook.behind, original, bind)


@not_counted
def _wrap_made(target: str, made: Capture, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    """Look at what has been made; whatever torch would compile of it because of our frame, it does not."""

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        result = hooking.uncompiled(original)(*args, **kwargs)
        if state.on:
            if kwargs and bind is not None:
                args, kwargs = bind(args, kwargs)
            attempt("follow", target, made, args, kwargs, result)
        return result

    return around


@not_counted
def _wrap_marks(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if state.on:
            marks = generation.thread.marks
            if marks is not None:
                marks.append(monotonic_ns())
        return result

    return around


@not_counted
def _wrap_behind(
    target: str, behind: Callable[[tuple[Any, ...]], object], original: Callable[..., Any], bind: Bind | None
) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if state.on:
            if kwargs and bind is not None:
                args, kwargs = bind(args, kwargs)
            attempt("follow", target, behind, args)
        return result

    return around


@not_counted
def _wrap_async(hook: Hook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    target, capture, after, during = hook.target, hook.capture, hook.after, hook.during
    begins, by_name = hook.stage is not None or hook.before is not None, hook.by_name
    early = _early(hook, bind)
    covered: Covered | None = None

    @functools.wraps(original)
    async def around(*args: Any, **kwargs: Any) -> Any:
        if not state.on or (during and getattr(state.training, during) is None):
            return await original(*args, **kwargs)
        if covered is not None and attempt("look at", target, covered, args):
            return await original(*args, **kwargs)
        given, named = args, kwargs
        if (kwargs or by_name) and early is not None:
            given, named = early(args, kwargs)
        span = attempt("begin", target, _begin, hook, given, named) if begins else None
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

    return around


def _begin(hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stage | None:
    """Open the stage of a call, unless the current one has the same name: nested and recomputed calls count once."""
    if hook.before is not None:
        hook.before(args, kwargs)
    stage = hook.stage
    name = stage if isinstance(stage, str) or stage is None else stage(args, kwargs)
    if not isinstance(name, str):
        return None
    parent = CURRENT.get()
    if parent is not None and parent.name == name and not parent.ended:
        return None
    said = hook.attributes
    if callable(said):
        attributes = attempt("describe", hook.target, said, args, kwargs)
    else:
        attributes = dict(said) if said else None
    opened = Stage(name, attributes, coarse=True)
    opened.open()
    return opened


def _early(hook: Hook, bind: Bind | None) -> Bind | None:
    """Return ``bind`` if anything looks at the arguments of a call that does not fail."""
    is_wanted = any(map(callable, (hook.stage, hook.attributes, hook.before, hook.capture, hook.after)))
    return bind if is_wanted else None


def _fail(
    hook: Hook,
    bind: Bind | None,
    span: Stage | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: BaseException,
) -> None:
    if span is not None:
        with guard(f"end {hook.target}"):
            span.__exit__(type(error), error, error.__traceback__)
    if hook.failed is not None:
        with guard(f"follow {hook.target}"):
            given, named = (args, kwargs) if bind is None else bind(args, kwargs)
            hook.failed(given, named, error)
