"""Watched calls: the host notices nothing, and the watch sees every item and how it ended."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from otel_rl import guard
from otel_rl.hooks import GeneratorCall, GeneratorHook, RequestHook
from otel_rl.hooks.hook import wrap
from tests.fixtures import Recording

pytestmark = pytest.mark.usefixtures("recording")


class Seen:
    """A watch that writes down what it sees."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.items: list[Any] = []
        self.ends: list[tuple[Any, str]] = []

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        self.begun.append((args, kwargs))
        return self

    def item(self, value: Any) -> object:
        self.items.append(value)
        return None

    def end(self, result: Any, error: BaseException | None) -> None:
        self.ends.append((result, type(error).__name__ if error is not None else ""))

    def wrap(self, host: Callable[..., Any]) -> Callable[..., Any]:
        return wrap(RequestHook(target="host:function", watch=self.begin), host)

    def first(self, asked: GeneratorCall, value: Any, error: BaseException | None) -> Seen | None:
        self.begin(asked.args, asked.kwargs)
        if error is not None:
            return self.end(None, error)
        return None if self.item(value) is True else self

    def ask(self, host: Callable[..., Any]) -> Callable[..., Any]:
        return wrap(GeneratorHook(target="host:function", first=self.first), host)


asynchronous = pytest.mark.parametrize("way_in", [Seen.wrap, Seen.ask])
"""Both ways to stand between an asynchronous generator and its caller."""


class Wrong:
    """A watch of which everything fails."""

    def item(self, value: Any) -> None:
        raise RuntimeError("ours")

    def end(self, result: Any, error: BaseException | None) -> None:
        raise RuntimeError("ours")


def talk(first: Any) -> Generator[Any, Any, Any]:
    """Yield what it was sent or what was thrown at it, until it is told to stop or to fail."""
    said = first
    while said != "stop":
        try:
            said = yield said
        except KeyError as error:
            said = f"caught {error}"
        if said == "fail":
            raise ValueError("host")
    return "bye"


async def talk_later(first: Any) -> AsyncGenerator[Any, Any]:
    """The same, asynchronous."""
    said = first
    while said != "stop":
        try:
            said = yield said
        except KeyError as error:
            said = f"caught {error}"
        if said == "fail":
            raise ValueError("host")


def converse(generator: Generator[Any, Any, Any], last: str) -> list[Any]:
    """Use every way into a generator; what came out, with its result."""
    heard = [next(generator), generator.send(2), generator.throw(KeyError("x"))]
    with pytest.raises(ValueError if last == "fail" else StopIteration) as ended:
        generator.send(last)
    return [*heard, getattr(ended.value, "value", ended.value.args)]


async def converse_later(generator: AsyncGenerator[Any, Any], last: str) -> list[Any]:
    """The same, asynchronous."""
    heard = [await generator.__anext__(), await generator.asend(2), await generator.athrow(KeyError("x"))]
    with pytest.raises(ValueError if last == "fail" else StopAsyncIteration) as ended:
        await generator.asend(last)
    return [*heard, ended.value.args]


@pytest.mark.parametrize(("last", "end"), [("stop", ("bye", "")), ("fail", (None, "ValueError"))])
def test_a_generator_is_the_hosts(last: str, end: tuple[Any, str]) -> None:
    """Whatever is sent to it or thrown into it; the watch sees what it yields, its result, its error."""
    seen = Seen()
    watched = seen.wrap(talk)(1)
    assert inspect.isgenerator(watched)
    assert [] == seen.begun
    assert converse(talk(1), last) == converse(watched, last)
    assert ([((1,), {})], [1, 2, "caught 'x'"], [end]) == (seen.begun, seen.items, seen.ends)


@asynchronous
@pytest.mark.parametrize(("last", "end"), [("stop", (None, "")), ("fail", (None, "ValueError"))])
def test_an_asynchronous_generator_is_the_hosts(way_in: Any, last: str, end: tuple[Any, str]) -> None:
    """The same."""
    seen = Seen()
    watched = way_in(seen, talk_later)(1)
    assert (True, "talk_later") == (isinstance(watched, AsyncGenerator), watched.__name__)
    assert asyncio.run(converse_later(talk_later(1), last)) == asyncio.run(converse_later(watched, last))
    assert ([((1,), {})], [1, 2, "caught 'x'"], [end]) == (seen.begun, seen.items, seen.ends)


class Enough(Seen):
    """A watch that has seen enough with the second item."""

    def item(self, value: Any) -> object:
        super().item(value)
        return len(self.items) == self.most

    most = 2


class EnoughOfOne(Enough):
    """With the first."""

    most = 1


@pytest.mark.parametrize("last", ["stop", "fail"])
def test_who_asked_may_have_seen_enough(last: str) -> None:
    """With the first item, or with a later one."""
    for seen, items in ((EnoughOfOne(), [1]), (Enough(), [1, 2])):
        watched = seen.ask(talk_later)(1)
        assert asyncio.run(converse_later(talk_later(1), last)) == asyncio.run(converse_later(watched, last))
        assert (items, []) == (seen.items, seen.ends)


@pytest.mark.parametrize("last", ["stop", "fail"])
def test_a_watch_may_have_seen_enough(last: str) -> None:
    """The generator goes on as before, and nobody hears how it ends."""
    for talking, run in ((talk, converse), (talk_later, lambda made, last: asyncio.run(converse_later(made, last)))):
        seen = Enough()
        assert run(talking(1), last) == run(seen.wrap(talking)(1), last)
        assert ([1, 2], []) == (seen.items, seen.ends)


def test_a_generator_that_is_left_ends_at_once() -> None:
    """The host's own clean-up runs, then the watch hears of it."""
    seen, order = Seen(), []

    def host() -> Generator[int]:
        try:
            yield 1
        finally:
            order.append(list(seen.ends))

    watched = seen.wrap(host)()
    next(watched)
    watched.close()
    assert ([[]], [(None, "GeneratorExit")]) == (order, seen.ends)


@asynchronous
def test_an_asynchronous_generator_that_is_left_ends_at_once(way_in: Any) -> None:
    """The same; the host's clean-up may wait for something."""
    seen, order = Seen(), []

    async def host() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            order.append(list(seen.ends))

    async def leave() -> None:
        watched = way_in(seen, host)()
        await watched.__anext__()
        await watched.aclose()

    asyncio.run(leave())
    assert ([[]], [(None, "GeneratorExit")]) == (order, seen.ends)


@pytest.mark.parametrize("is_watched", [True, False])
def test_the_event_loop_closes_what_is_left_without_a_word(is_watched: bool) -> None:
    """It knows one generator, the host's, whose clean-up may wait for something; the watch hears when it is gone."""
    seen, logged, order = Seen(), [], []

    async def host() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            order.append("closed")

    async def leave() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, told: logged.append(told["message"]))
        watched = (seen.wrap(host) if is_watched else host)()
        await watched.__anext__()
        return watched

    left = asyncio.run(leave())
    assert (["closed"], [], []) == (order, logged, seen.ends)
    del left
    assert [(None, "GeneratorExit")] * is_watched == seen.ends


@asynchronous
def test_what_is_forgotten_is_seen_at_once(way_in: Any) -> None:
    """Without waiting for the event loop to close it."""
    seen = Seen()

    async def forget() -> None:
        await way_in(seen, talk_later)(1).__anext__()
        assert [(None, "GeneratorExit")] == seen.ends

    asyncio.run(forget())


@asynchronous
@pytest.mark.parametrize("way", ["aclose", "athrow"])
def test_what_never_begins_is_not_seen(way_in: Any, way: str) -> None:
    """Closed, or thrown at, before its first item."""
    seen = Seen()

    async def end(generator: Any) -> list[Any]:
        if way == "aclose":
            await generator.aclose()
        else:
            with pytest.raises(KeyError):
                await generator.athrow(KeyError("x"))
        return [item async for item in generator]

    assert asyncio.run(end(talk_later(1))) == asyncio.run(end(way_in(seen, talk_later)(1)))
    assert ([], []) == (seen.begun, seen.ends)


@asynchronous
def test_who_comes_second_is_refused_and_the_first_goes_on(way_in: Any) -> None:
    """By the host's generator, while it runs; the watch sees nothing of that."""
    seen = Seen()

    async def host() -> AsyncGenerator[int]:
        await asyncio.sleep(0)
        yield 1

    async def crowd(generator: Any) -> list[Any]:
        first = asyncio.ensure_future(generator.__anext__())
        await asyncio.sleep(0)
        refused = []
        for second in (generator.__anext__, generator.aclose):
            with pytest.raises(RuntimeError) as caught:
                await second()
            refused.append(str(caught.value))
        return [await first, refused]

    assert asyncio.run(crowd(host())) == asyncio.run(crowd(way_in(seen, host)()))
    gc.collect()
    assert ([1], [(None, "GeneratorExit")]) == (seen.items, seen.ends)


def test_a_wait_that_is_cancelled_is_seen() -> None:
    """In a coroutine and between two items."""
    seen = Seen()

    async def wait() -> None:
        await asyncio.sleep(60)

    async def wait_for_item() -> AsyncGenerator[None]:
        await asyncio.sleep(60)
        yield

    async def cancel(waiting: Any) -> None:
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def first() -> None:
        await seen.wrap(wait_for_item)().__anext__()

    asyncio.run(cancel(seen.wrap(wait)()))
    asyncio.run(cancel(first()))
    assert [(None, "CancelledError")] * 2 == seen.ends


def test_a_function_is_watched_too() -> None:
    """Its result or its exception."""
    seen = Seen()
    divide = seen.wrap(lambda x, y: x / y)
    assert 2.0 == divide(4, 2)
    with pytest.raises(ZeroDivisionError):
        divide(1, 0)
    assert [(2.0, ""), (None, "ZeroDivisionError")] == seen.ends


def test_wrong_arguments_are_refused_where_the_host_refuses_them() -> None:
    """At the call, not at the first item."""
    seen = Seen()
    with pytest.raises(TypeError, match="first"):
        seen.wrap(talk)()
    assert [] == seen.begun


@pytest.mark.guarded
def test_our_failures_are_unseen() -> None:
    """Of the begin, of an item, of the end."""
    wrong = wrap(RequestHook(target="host:talk", watch=lambda args, kwargs: Wrong()), talk)
    later = wrap(RequestHook(target="host:talk", watch=lambda args, kwargs: Wrong()), talk_later)
    for last in ("stop", "fail"):
        assert converse(talk(1), last) == converse(wrong(1), last)
        assert asyncio.run(converse_later(talk_later(1), last)) == asyncio.run(converse_later(later(1), last))
    assert {"see an item of host:talk": 12, "end host:talk": 4} == guard.errors


@pytest.mark.guarded
def test_our_failures_are_unseen_where_one_item_is_asked_for() -> None:
    """Of the item, and of an exception instead of it."""

    async def host(is_wrong: bool) -> AsyncGenerator[int]:
        if is_wrong:
            raise ValueError("host")
        yield 1

    def fail(*_: Any) -> None:
        raise RuntimeError("ours")

    wrong = wrap(GeneratorHook(target="host:function", first=fail), host)

    async def ask() -> None:
        assert 1 == await wrong(False).__anext__()
        with pytest.raises(ValueError):
            await wrong(True).__anext__()

    asyncio.run(ask())
    assert {"see an item of host:function": 1, "end host:function": 1} == guard.errors


def test_what_gives_nothing_is_not_seen() -> None:
    """Where one item is asked for."""
    seen = Seen()

    async def host() -> AsyncGenerator[int]:
        for one in ():
            yield one

    async def ask() -> list[int]:
        return [item async for item in seen.ask(host)()]

    assert ([], [], []) == (asyncio.run(ask()), seen.begun, seen.ends)


@pytest.mark.parametrize("most", [1, 2])
def test_what_was_asked_with_goes_with_the_first_item(most: int) -> None:
    """Who keeps the generator keeps none of it for us, whether somebody watches on or not."""

    class Given:
        """An argument."""

    async def host(given: Given, *, more: Given | None = None) -> AsyncGenerator[int]:
        del given, more
        yield 1
        yield 2

    async def ask(**more: Given) -> None:
        seen = Enough()
        seen.most = most
        given = Given()
        gone = [weakref.ref(one) for one in (given, *more.values())]
        generator = seen.ask(host)(given, **more)
        del given
        more.clear()
        assert 1 == await generator.__anext__()
        seen.begun.clear()
        gc.collect()
        assert [None] * len(gone) == [one() for one in gone]
        assert 2 == await generator.__anext__()

    asyncio.run(ask())
    asyncio.run(ask(more=Given()))


def test_two_may_ask_before_either_waits() -> None:
    """The second gets the second item."""
    seen = Seen()

    async def host() -> AsyncGenerator[int]:
        yield 1
        yield 2

    async def ask() -> list[int]:
        generator = seen.ask(host)()
        first, second = generator.__anext__(), generator.__anext__()
        return [await first, await second]

    assert ([1, 2], [1, 2], 1) == (asyncio.run(ask()), seen.items, len(seen.begun))


def test_without_interest_nothing_is_between(recording: Recording) -> None:
    """Where there is no watch, and without a recording."""
    indifferent = wrap(RequestHook(target="host:talk", watch=lambda args, kwargs: None), talk)
    indifferent_later = wrap(RequestHook(target="host:talk", watch=lambda args, kwargs: None), talk_later)
    assert converse(talk(1), "stop") == converse(indifferent(1), "stop")
    assert asyncio.run(converse_later(talk_later(1), "stop")) == asyncio.run(
        converse_later(indifferent_later(1), "stop")
    )
    seen = Seen()
    watched = seen.wrap(talk)
    recording.stop()
    assert "talk" == watched(1).__name__
    assert [] == seen.begun
