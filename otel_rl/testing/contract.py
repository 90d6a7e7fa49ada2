"""The contract of every hook: the program notices nothing of it, and everything is undone."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from otel_rl import vocabulary
from otel_rl.guard import errors
from otel_rl.hooks import (
    BlockHook,
    CallbackHook,
    CollectiveHook,
    GeneratorHook,
    Hook,
    Integration,
    Memory,
    RemoteHook,
    RequestHook,
    ReturnHook,
    StageHook,
)
from otel_rl.hooks.hook import wrap
from otel_rl.hooks.install import find
from otel_rl.hooks.submitted import SubmittedHook
from otel_rl.process.state import state
from otel_rl.testing.capture import capture
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import current_stage

Check = Callable[[Integration], None]
KINDS: Final = (
    BlockHook, CallbackHook, CollectiveHook, GeneratorHook, RemoteHook, RequestHook, ReturnHook, StageHook,
    SubmittedHook,
)  # fmt: skip
FUNCTIONS: Final = frozenset({
    "begin", "before", "after", "failed", "capture", "watch", "first", "inject", "extract", "submitted",
})  # fmt: skip
"""Fields of hooks that are functions of an integration."""
EXCEPTIONS: Final = (ValueError, KeyboardInterrupt, StopIteration, asyncio.CancelledError)


class BrokenContractError(AssertionError):
    """A hook does what it must not do; the message names its target."""


def check_integration(integration: Integration) -> None:
    """Check that a program notices nothing of an integration.

    Functions of the package are replaced only by the check of the undoing; the others call stand-ins, with arguments
    that no function of a hook understands, and with functions that fail.

    Raises:
        BrokenContractError: something breaks the contract; the message names the target and what is wrong.
    """
    for check in CHECKS:
        check(integration)


def _require(condition: object, hook: Hook | Integration, what: str) -> None:
    if not condition:
        name = hook.target if isinstance(hook, Hook) else f"the integration {hook.name}"
        raise BrokenContractError(f"{name}: {what}")


def every_hook(integration: Integration) -> tuple[Hook, ...]:
    """Return all hooks of an integration, also those of classes that no import brings."""
    return (*integration.hooks, *integration.arriving)


# --- the table --------------------------------------------------------------------------------------------------------


def table_is_sound(integration: Integration) -> None:
    """Check that every hook has a kind, and no target stands twice."""
    SpecifierSet(integration.supports)
    targets = [hook.target for hook in every_hook(integration)]
    is_kept = integration.memory is None or any(integration.memory is one for one in Memory.kept)
    _require(is_kept, integration, "its memory must be made by keep(), so that it begins anew")
    for hook in every_hook(integration):
        _require(type(hook) in KINDS, hook, "it is of none of the kinds of hook")
        _require(targets.count(hook.target) == 1, hook, "two hooks have this target")


def targets_exist(integration: Integration) -> None:
    """Check that each target is there and keeps its kind and its name, if the package is installed."""
    for hook in integration.hooks if applies(integration) else ():
        original = target_of(hook)
        _require(original is not None or hook.optional, hook, "the installed package has no such function")
        if original is None:
            continue
        wrapped = wrap(hook, original)
        _require(wrapped is not original, hook, "it looks at its caller's frame; hook what it calls instead")
        is_async = inspect.iscoroutinefunction(original)
        is_generator = inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original)
        _require(is_async == inspect.iscoroutinefunction(wrapped), hook, "a coroutine function must stay one")
        is_watched = isinstance(hook, (RequestHook, GeneratorHook))
        _require(not is_generator or is_watched, hook, "a generator needs a RequestHook or a GeneratorHook")
        is_named = (original.__name__, original.__doc__) == (wrapped.__name__, wrapped.__doc__)
        _require(is_named, hook, "its name and its docstring must stay")


def applies(integration: Integration) -> bool:
    """Return whether the package is installed in a supported version."""
    installed = integration.installed()
    return installed is not None and SpecifierSet(integration.supports).contains(installed, prereleases=True)


def target_of(hook: Hook) -> Any:
    """Return the function that a hook is for, None if there is none."""
    try:
        found = find(hook.target)
    except ModuleNotFoundError:
        return None
    return None if found is None else getattr(*found)


# --- calls ------------------------------------------------------------------------------------------------------------


def fails(*_: object) -> Any:
    """Stand for a function of a hook that is wrong."""
    raise RuntimeError("a function of a hook failed")


def failing(hook: Hook) -> Hook:
    """Return a hook all of whose functions fail."""
    found: dict[str, Any] = {one.name: fails for one in fields(hook) if one.name in FUNCTIONS}
    if isinstance(hook, CallbackHook):
        found["during"] = None
    return replace(hook, **found)


def variants(integration: Integration) -> Iterator[Hook]:
    """Return every hook as it is, with a stage for each call, and with functions that fail."""
    for hook in every_hook(integration):
        yield hook
        if isinstance(hook, StageHook):
            yield replace(hook, stage=vocabulary.REWARD)
        yield failing(hook)


def result_stays(integration: Integration) -> None:
    """Check that a call returns the very object that the function returns, for the very arguments."""
    result, first, second = object(), object(), object()
    seen: list[Any] = []

    def host(*args: Any, **kwargs: Any) -> object:
        seen.append((args, kwargs))
        return result

    with capture():
        state.identify(world_size=2)
        for hook in variants(integration):
            _require(wrap(hook, host)(first, second, key=first) is result, hook, "it must return the function's result")
            is_sent = isinstance(hook, RemoteHook)
            _require(is_sent or seen == [((first, second), {"key": first})], hook, "the arguments must stay")
            seen.clear()


def exception_stays(integration: Integration) -> None:
    """Check that a call raises the very exception that the function raises."""
    with capture():
        state.identify(world_size=2)
        for hook in variants(integration):
            for kind in EXCEPTIONS:
                _check_exception(hook, kind())


def coroutine_stays(integration: Integration) -> None:
    """Check that an awaited call returns the result, and raises the exception, of the coroutine function."""
    result = object()

    async def host(*_: object, **more: object) -> object:
        await asyncio.sleep(0)
        return result

    with capture():
        state.identify(world_size=2)
        for hook in variants(integration):
            is_same = asyncio.run(_await(wrap(hook, host))) is result
            _require(is_same, hook, "it must return the coroutine's result")
            _check_exception(hook, ValueError(), is_async=True)


def callers_stay(integration: Integration) -> None:
    """Check that a decorator which looks at its caller's frame finds it, around a function of either kind."""
    with capture():
        state.identify(world_size=2)
        for hook in variants(integration):
            asyncio.run(_check_caller(hook))


async def _check_caller(hook: Hook) -> None:
    async def later(*_: object, **more: object) -> None:
        await asyncio.sleep(0)

    for host in (later, lambda *_, **more: None):
        caller, result = wrap(hook, _with_caller(host))(object(), object())
        if inspect.iscoroutine(result):
            await result
        _require(caller is sys._getframe().f_code, hook, "a decorator must find its caller's frame")


def _with_caller(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return sys._getframe(1).f_code, function(*args, **kwargs)

    return decorated


async def _await(function: Callable[..., Any]) -> Any:
    return await function(object(), object())


def _check_exception(hook: Hook, error: BaseException, *, is_async: bool = False) -> None:
    def host(*_: object, **more: object) -> None:
        raise error

    async def later(*_: object, **more: object) -> None:
        await asyncio.sleep(0)
        raise error

    raised: BaseException | None = None
    try:
        if is_async:
            asyncio.run(_await(wrap(hook, later)))
        else:
            wrap(hook, host)(object(), object())
    except EXCEPTIONS as caught:
        raised = caught
    is_same = raised is error and error.__context__ is None
    _require(is_same, hook, f"it must raise the function's {type(error).__name__}")


def failures_stay_ours(integration: Integration) -> None:
    """Check that a failing function of a hook is counted, and leaves no stage open or current."""
    with capture():
        state.identify(world_size=2)
        before = current_stage(), set(tracing.open)
        for hook in every_hook(integration):
            wrap(failing(hook), lambda *args, **kwargs: None)()
            is_counted = isinstance(hook, (GeneratorHook, RemoteHook)) or any(hook.target in what for what in errors)
            _require(is_counted, hook, "an error of a function must be counted")
            _require(
                before == (current_stage(), set(tracing.open)), hook, "an error of a function must leave nothing open"
            )


def nothing_runs_after(integration: Integration) -> None:
    """Check that without a recording no function of a hook runs."""
    before = dict(errors)
    for hook in every_hook(integration):
        never = failing(hook)
        if isinstance(never, StageHook):
            never = replace(never, stage=fails)
        _require(wrap(never, lambda x: x)(5) == 5, hook, "without a recording it must return the function's result")
        _require(before == dict(errors), hook, "without a recording no function of the hook may run")


# --- undo -------------------------------------------------------------------------------------------------------------


def undo_is_exact(integration: Integration) -> None:
    """Check that each target is replaced while recording, and is the identical object afterwards."""
    if not applies(integration):
        return
    hooks = [hook for hook in integration.hooks if target_of(hook) is not None]
    before = list(map(_static, hooks))
    with capture(integration):
        meanwhile = list(map(_static, hooks))
    for hook, original, replacement in zip(hooks, before, meanwhile, strict=True):
        _require(original is not replacement, hook, "it is not replaced while recording")
        _require(original is _static(hook), hook, "it is not restored after recording")
    left = {id(one) for one in meanwhile} & {id(one) for one in _globals()}
    _require(not left, integration, "a module still has a replacement after recording")


def _static(hook: Hook) -> Any:
    found = find(hook.target)
    return None if found is None else inspect.getattr_static(*found)


def _globals() -> Iterator[Any]:
    for module in list(sys.modules.values()):
        yield from list(vars(module).values()) if hasattr(module, "__dict__") else ()


CHECKS: Final[tuple[Check, ...]] = (
    table_is_sound,
    targets_exist,
    result_stays,
    exception_stays,
    coroutine_stays,
    callers_stay,
    failures_stay_ours,
    nothing_runs_after,
    undo_is_exact,
)
