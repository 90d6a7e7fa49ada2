"""Calls that are watched from their begin to their end, item by item where they are generators: rollout requests."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Protocol

from otel_rl.guard import attempt
from otel_rl.runtime import state


class Watch(Protocol):
    """What an integration remembers of one call; both methods run guarded."""

    def item(self, value: Any) -> None:
        """See what a generator yields, before its caller does."""

    def end(self, result: Any, error: BaseException | None) -> None:
        """See the result, or the host's exception; ``GeneratorExit`` where the caller left a generator."""


Begin = Callable[[tuple[Any, ...], dict[str, Any]], Watch | None]
"""``(args, kwargs)``: the watch of one call, or None where it is of no interest. A generator begins with its first
item, as its own code does."""


def watched(target: str, begin: Begin, original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of a function, coroutine function, generator or asynchronous generator.

    Its items, result and exception pass through, and so does what is sent or thrown into a generator. Cost of a
    generator: 1.2 us, asynchronous 1.5 us, and 0.2 us an item, without what the watch itself does.
    """
    if inspect.iscoroutinefunction(original):
        return _coroutine(target, begin, original)
    if inspect.isgeneratorfunction(original):
        return _generator(_items, target, begin, original)
    if inspect.isasyncgenfunction(original):
        return _generator(_async_items, target, begin, original)

    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
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

    return around


def _coroutine(target: str, begin: Begin, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def around(*args: Any, **kwargs: Any) -> Any:
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

    return around


def _generator(
    pass_on: Callable[..., Any], target: str, begin: Begin, original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def around(*args: Any, **kwargs: Any) -> Any:
        items = original(*args, **kwargs)  # raises here what it raises without us
        return pass_on(items, target, functools.partial(begin, args, kwargs)) if state.on else items

    return around


class _Seen:
    """The iterator that a generator delegates to: shows every item to the watch."""

    __slots__ = ("close", "items", "target", "watch")

    def __init__(self, items: Generator[Any, Any, Any], target: str, watch: Watch) -> None:
        self.items, self.target, self.watch = items, target, watch
        self.close = items.close

    def __iter__(self) -> _Seen:
        return self

    def __next__(self) -> Any:
        value = next(self.items)
        attempt("see an item of", self.target, self.watch.item, value)
        return value

    def send(self, value: Any) -> Any:
        value = self.items.send(value)
        attempt("see an item of", self.target, self.watch.item, value)
        return value

    def throw(self, *error: Any) -> Any:
        value = self.items.throw(*error)
        attempt("see an item of", self.target, self.watch.item, value)
        return value


def _items(items: Generator[Any, Any, Any], target: str, begin: Callable[[], Watch | None]) -> Generator[Any, Any, Any]:
    watch = attempt("begin", target, begin)
    if watch is None:
        return (yield from items)
    try:
        result = yield from _Seen(items, target, watch)
    except BaseException as error:
        attempt("end", target, watch.end, None, error)
        raise
    attempt("end", target, watch.end, result, None)
    return result


async def _async_items(
    items: AsyncGenerator[Any, Any], target: str, begin: Callable[[], Watch | None]
) -> AsyncGenerator[Any, Any]:
    watch = attempt("begin", target, begin)
    resume: Any = items.asend
    sent: Any = None
    try:
        while True:
            try:
                value = await resume(sent)
            except StopAsyncIteration:
                break
            if watch is not None:
                attempt("see an item of", target, watch.item, value)
            try:
                resume, sent = items.asend, (yield value)
            except BaseException as error:
                if isinstance(error, GeneratorExit):
                    await items.aclose()
                    raise
                resume, sent = items.athrow, error  # the caller's, for the host's own generator
    except BaseException as error:
        if watch is not None:
            attempt("end", target, watch.end, None, error)
        raise
    if watch is not None:
        attempt("end", target, watch.end, None, None)
