"""Hooks that watch a call from its begin to its end, item by item where it is a generator: rollout requests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from types import AsyncGeneratorType
from typing import Any, Final, NamedTuple, Protocol

from otel_rl.clock import monotonic_ns
from otel_rl.guard import attempt
from otel_rl.hooks.arguments import Args, Bind, Kwargs
from otel_rl.hooks.hook import Before, Hook
from otel_rl.process.state import state
from otel_rl.requests.memory import generation
from otel_rl.trace.importlib_bootstrap import not_counted
from otel_rl.trace.stage import current_parent


class Ending(NamedTuple):
    """How a call ended that raised: all that may be kept of an exception, which holds its frames and their tensors."""

    finish: str
    """``timeout``, ``error``, or ``abort`` where it was cancelled, left, or the program ends."""
    error: str
    """The class of the exception; empty for an abort."""


def ending(error: BaseException) -> Ending:
    """Return how a call ended that raised this."""
    name = type(error).__name__
    if not isinstance(error, Exception):
        return Ending("abort", "")
    return Ending("timeout" if isinstance(error, TimeoutError) or "Timeout" in name else "error", name)


class Watch(Protocol):
    """What an integration remembers of one call; both methods run guarded."""

    def item(self, value: Any) -> object:
        """Read what a generator yields, before its caller does; True means enough: ``end`` is not called then."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """Read the result, or the host's exception; ``GeneratorExit`` where the caller left a generator.

        It must not keep the exception: ``ending`` returns what can be known of it.
        """


NOTHING: Final[Kwargs] = {}
"""Stands for the empty keywords of a call, so that one object less is kept for each call."""
Begin = Callable[[Args, Kwargs], Watch | None]
"""``(args, kwargs)``: returns what watches the call, or None where it is of no interest. A generator begins with its
first item, as its own code does."""
First = Callable[["GeneratorCall", Any, BaseException | None], Watch | None]
"""``(call, item, error)``: sees the first item, or the exception instead of it; returns what watches the further items,
or None where they are of no interest."""


@dataclass(frozen=True, kw_only=True)
class RequestHook(Hook):
    """A call that is watched to its end: of a function, a coroutine function, or a generator function of either kind.

    Its items, result and exception pass through, and so does what is sent or thrown into a generator. An asynchronous
    generator function returns an object with the methods of a generator: event loops keep account of real ones, and
    close those that are left. Cost of a generator: 1.2 us and 0.2 us an item, asynchronous 1.5 us and 0.5 us an item.
    """

    watch: Begin

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``."""
        begin = self.watch if bind is None else functools.partial(_begin_bound, self.watch, bind)
        if inspect.iscoroutinefunction(original):
            return _wrap_coroutine(self.target, begin, original)
        if inspect.isgeneratorfunction(original):
            return _wrap_generator(_items, self.target, begin, original)
        if inspect.isasyncgenfunction(original):
            return _wrap_generator(_AsyncItems, self.target, begin, original)
        return _wrap_function(self.target, begin, original)


@dataclass(frozen=True, kw_only=True)
class GeneratorHook(Hook):
    """An asynchronous generator of which most callers want one item.

    Until that item is there nothing is made or called except ``before``, which sees the arguments when the generator
    begins. Cost: 1 us (``benchmarks/engine_requests.py``), where a ``RequestHook`` takes 2 us.
    """

    first: First
    before: Before | None = None

    def replacement(self, original: Any, bind: Bind | None) -> Any:
        """Return the function that stands in the place of ``original``."""
        return _wrap_first(self, original, bind)


def _begin_bound(begin: Begin, bind: Bind, args: Args, kwargs: Kwargs) -> Watch | None:
    return begin(*bind(args, kwargs)) if kwargs else begin(args, kwargs)


@not_counted
def _wrap_function(target: str, begin: Begin, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        watch = attempt("begin", target, begin, args, kwargs) if state.on else None
        if watch is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            attempt("end", target, watch.end, None, error)
            raise
        attempt("end", target, watch.end, result, None)
        return result

    return call


@not_counted
def _wrap_coroutine(target: str, begin: Begin, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        watch = attempt("begin", target, begin, args, kwargs) if state.on else None
        if watch is None:
            return await original(*args, **kwargs)
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            attempt("end", target, watch.end, None, error)
            raise
        attempt("end", target, watch.end, result, None)
        return result

    return call


@not_counted
def _wrap_generator(
    pass_on: Callable[..., Any], target: str, begin: Begin, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        items = original(*args, **kwargs)  # raises here what it raises without us
        return pass_on(items, target, functools.partial(begin, args, kwargs)) if state.on else items

    return call


@not_counted
def _wrap_first(hook: GeneratorHook, original: Callable[..., Any], bind: Bind | None) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        items = original(*args, **kwargs)
        if not state.on or type(items) is not AsyncGeneratorType:
            return items
        if kwargs and bind is not None:
            args, kwargs = bind(args, kwargs)
        return GeneratorCall(items, hook, args, kwargs or NOTHING)

    return call


@not_counted
class _Items:
    """The iterator that a generator delegates to: shows every item to the watch."""

    __slots__ = ("close", "items", "target", "watch")

    def __init__(self, items: Generator[Any, Any, Any], target: str, watch: Watch) -> None:
        self.items, self.target = items, target
        self.watch: Watch | None = watch
        self.close = items.close

    def __iter__(self) -> _Items:
        return self

    def __next__(self) -> Any:
        value = next(self.items)
        self._show(value)
        return value

    def _show(self, value: Any) -> None:
        if self.watch is not None and attempt("see an item of", self.target, self.watch.item, value) is True:
            self.watch = None

    def send(self, value: Any) -> Any:
        value = self.items.send(value)
        self._show(value)
        return value

    def throw(self, *error: Any) -> Any:
        value = self.items.throw(*error)
        self._show(value)
        return value


@not_counted
def _items(items: Generator[Any, Any, Any], target: str, begin: Callable[[], Watch | None]) -> Generator[Any, Any, Any]:
    watch = attempt("begin", target, begin)
    if watch is None:
        return (yield from items)
    shown = _Items(items, target, watch)
    try:
        result = yield from shown
    except BaseException as error:
        if shown.watch is not None:
            attempt("end", target, watch.end, None, error)
        raise
    if shown.watch is not None:
        attempt("end", target, watch.end, result, None)
    return result


@not_counted
class _AsyncItems:
    """What the caller has of an asynchronous generator; it shows every item to the watch.

    A generator that holds the host's would be known to the event loop as well, which closes all that are left when it
    ends, both at once: the outer one's ``aclose`` would find the inner one closing, and the loop would log an error.
    """

    __slots__ = ("__weakref__", "_begin", "_items", "_target", "_watch")

    def __init__(self, items: AsyncGeneratorType[Any, Any], target: str, begin: Callable[[], Watch | None]) -> None:
        self._items, self._target = items, target
        self._begin: Callable[[], Watch | None] | None = begin
        self._watch: Watch | None = None

    def __aiter__(self) -> _AsyncItems:
        return self

    def __anext__(self) -> Awaitable[Any]:
        if self._watch is None and self._begin is None:
            return self._items.__anext__()
        return self._next(self._items.__anext__)

    def asend(self, value: Any) -> Awaitable[Any]:
        return self._next(functools.partial(self._items.asend, value))

    async def athrow(self, *error: Any) -> Any:
        self._begin = None  # one that has not begun will not
        return await self._next(functools.partial(self._items.athrow, *error))

    async def aclose(self) -> None:
        if self._items.ag_running:
            return await self._items.aclose()  # refuses it
        self._begin = None
        try:
            await self._items.aclose()
        except BaseException as error:
            self._end(error)
            raise
        self._end(GeneratorExit())

    def __del__(self) -> None:
        if self._watch is not None:
            self._end(GeneratorExit())

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_items"), name)

    async def _next(self, resume: Callable[[], Any]) -> Any:
        if self._items.ag_running:
            return await resume()  # refuses it
        if self._begin is not None:
            self._watch, self._begin = attempt("begin", self._target, self._begin), None
        try:
            value = await resume()
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        if self._watch is not None and attempt("see an item of", self._target, self._watch.item, value) is True:
            self._watch = None
        return value

    def _end(self, error: BaseException | None) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            attempt("end", self._target, watch.end, None, error)


@not_counted
class GeneratorCall(_AsyncItems):
    """What the caller of a ``GeneratorHook``'s target has, and what is known of the call when its first item comes."""

    __slots__ = ("_hook", "args", "begun", "kwargs", "parent", "recording")

    def __init__(self, items: AsyncGeneratorType[Any, Any], hook: GeneratorHook, args: Args, kwargs: Kwargs) -> None:
        self._items, self._target, self._hook, self.args, self.kwargs = items, hook.target, hook, args, kwargs
        self._begin, self._watch = _no_watch, None  # until it has begun

    def __anext__(self) -> Awaitable[Any]:
        if self._begin is not None:
            return self._answer()
        return self._items.__anext__() if self._watch is None else self._next(self._items.__anext__)

    def asend(self, value: Any) -> Awaitable[Any]:
        """Send into the generator; None asks for its next item."""
        return self.__anext__() if value is None else super().asend(value)

    async def _answer(self) -> Any:
        items = self._items
        if self._begin is None:
            return await self._next(items.__anext__)
        self._begin = None
        hook = self._hook
        self.begun, self.parent, self.recording = monotonic_ns(), current_parent(), generation.recording
        if hook.before is not None:
            attempt("begin", hook.target, hook.before, self.args, self.kwargs)
        try:
            value = await items.__anext__()
        except StopAsyncIteration:
            raise
        except BaseException as error:
            attempt("end", hook.target, hook.first, self, None, error)
            raise
        self._watch = attempt("see an item of", hook.target, hook.first, self, value, None)
        del self.args, self.kwargs  # who keeps the generator need not keep them for us
        return value


def _no_watch() -> None:
    """Watch nothing."""
