"""The contract of every row of every integration: the host notices nothing, and everything is undone."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

import otel_rl
from otel_rl import entry, guard
from otel_rl.hooks.install import Attachment, Hook, find, wrap
from otel_rl.integrations import MODULES
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing
from otel_rl.trace.stage import current_stage
from tests.fixtures import Recording

INTEGRATIONS = {name: import_module(path) for name, path in MODULES.items()}
ROWS = [(name, hook) for name, module in INTEGRATIONS.items() for hook in module.HOOKS]
IDS = [f"{name}-{hook.target}" for name, hook in ROWS]


def applies(name: str) -> bool:
    """Whether the integration's package is here, in a supported version."""
    module = INTEGRATIONS[name]
    try:
        return version(module.PACKAGE) in SpecifierSet(module.SUPPORTS)
    except PackageNotFoundError:
        return False


every_row = pytest.mark.parametrize(("name", "hook"), ROWS, ids=IDS)
every_integration = pytest.mark.parametrize("name", list(INTEGRATIONS))


@pytest.fixture
def quiet(recording: Recording) -> Iterator[Recording]:
    """A recording of two ranks, so that collectives are recorded."""
    state.identify(world_size=2)
    yield recording


# --- tables -----------------------------------------------------------------------------------------------------------


@every_integration
def test_an_integration_is_a_table(name: str) -> None:
    """Package, versions, rows, attachments; no row twice; and a docstring that says where it runs."""
    module = INTEGRATIONS[name]
    assert (str, SpecifierSet) == (type(module.PACKAGE), type(SpecifierSet(module.SUPPORTS)))
    assert {Hook} == {type(hook) for hook in module.HOOKS}
    assert {Attachment} >= {type(attachment) for attachment in module.ATTACHMENTS}
    targets = [hook.target for hook in module.HOOKS]
    assert sorted(set(targets)) == sorted(targets)
    assert "Runs in" in str(module.__doc__)


def test_no_target_belongs_to_two_integrations() -> None:
    """Each call is recorded once."""
    targets = [hook.target for _, hook in ROWS]
    assert sorted(set(targets)) == sorted(targets)


@every_row
def test_a_row_has_a_purpose(name: str, hook: Hook) -> None:
    """It records something, and a collective is no stage."""
    before = hook.before if hook.asked is None else None  # what is asked may be seen when it begins
    others = (hook.stage, before, hook.capture, hook.after, hook.failed)
    kinds = hook.marks, hook.behind is not None, hook.made is not None, hook.asked is not None
    assert (sum(kinds) == 1) == (others == (None,) * 5 and hook.collective is None and hook.watch is None)
    assert hook.watch is None or (*others, hook.collective) == (None,) * 6
    assert hook.collective is None or (hook.stage, hook.capture, hook.after, hook.failed) == (None,) * 4


@every_row
def test_the_target_exists(name: str, hook: Hook) -> None:
    """In the installed version, unless it need not; and it is something that can be wrapped."""
    if not applies(name):
        pytest.skip(f"{name} is not installed")
    try:
        found = find(hook.target)
    except ModuleNotFoundError:
        found = None
    assert found is not None or hook.optional
    if found is not None:
        assert callable(getattr(*found))


@every_row
def test_asynchronous_targets_stay_so(name: str, hook: Hook) -> None:
    """And others do not become it; the signature is the same."""
    if not applies(name):
        pytest.skip(f"{name} is not installed")
    found = find(hook.target)
    if found is None:
        pytest.skip("not in this version")
    original = getattr(*found)
    wrapped = wrap(hook, original)
    assert inspect.iscoroutinefunction(original) == inspect.iscoroutinefunction(wrapped)
    is_generator = inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original)
    assert not is_generator or hook.watch is not None or hook.asked is not None
    assert (original.__name__, original.__doc__) == (wrapped.__name__, wrapped.__doc__)


# --- calls ------------------------------------------------------------------------------------------------------------


class Failure(RuntimeError):
    """An error of ours."""


def fails(*args: Any) -> Any:
    """Stand for a capture function that is wrong."""
    raise Failure


def failing(hook: Hook) -> Hook:
    """Make a row whose every part of ours fails."""
    if hook.collective is not None:
        return replace(hook, before=fails)
    if hook.watch is not None:
        return replace(hook, watch=fails)
    plain = replace(hook, during="", marks=False, behind=None, made=None, asked=None)
    return replace(plain, before=fails, capture=fails, after=fails, failed=fails)


def rows_of(name: str) -> Iterator[Hook]:
    """Give every row of an integration, then every row with a plain stage, then every row with failing parts.

    Called with objects that no framework knows, most capture functions fail by themselves.
    """
    hooks = INTEGRATIONS[name].HOOKS
    yield from hooks
    yield from (replace(hook, stage=hook.stage and "rl.reward") for hook in hooks)
    yield from map(failing, hooks)


@pytest.mark.guarded
@every_integration
def test_the_result_is_the_hosts(quiet: Recording, name: str) -> None:
    """The very object, for the very arguments, whatever our functions make of them."""
    result, first, second = object(), object(), object()
    seen: list[Any] = []

    def host(*args: Any, **kwargs: Any) -> object:
        seen.append((args, kwargs))
        return result

    for hook in rows_of(name):
        assert wrap(hook, host)(first, second, key=first) is result, hook.target
        assert [((first, second), {"key": first})] == seen, hook.target
        seen.clear()


@pytest.mark.guarded
@every_integration
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, StopIteration, asyncio.CancelledError])
def test_the_exception_is_the_hosts(quiet: Recording, name: str, kind: type[BaseException]) -> None:
    """The very object, without one of ours in its context."""
    for hook in rows_of(name):
        error = kind()

        def host(*args: Any, error: BaseException = error) -> None:
            raise error

        with pytest.raises(kind) as caught:
            wrap(hook, host)(object(), object())
        assert (True, None) == (caught.value is error, error.__context__), hook.target


@pytest.mark.guarded
@every_integration
def test_a_coroutine_is_the_hosts(quiet: Recording, name: str) -> None:
    """Its result and its exception."""
    result, error = object(), ValueError("host")

    async def host(is_wrong: bool) -> object:
        await asyncio.sleep(0)
        if is_wrong:
            raise error
        return result

    async def call_all() -> None:
        for hook in rows_of(name):
            wrapped = wrap(hook, host)
            is_passed = hook.marks or not (hook.behind is hook.made is hook.asked is None)
            assert is_passed or hook.collective is not None or inspect.iscoroutinefunction(wrapped), hook.target
            assert await wrapped(False) is result, hook.target
            with pytest.raises(ValueError) as caught:
                await wrapped(True)
            assert caught.value is error, hook.target

    asyncio.run(call_all())


@pytest.mark.guarded
@every_integration
def test_our_failures_are_counted_and_leave_nothing_behind(quiet: Recording, name: str) -> None:
    """Each under what it was doing; nothing stays open, nothing stays current."""
    with otel_rl.step(1) as container:
        for hook in INTEGRATIONS[name].HOOKS:
            wrap(failing(hook), lambda *args, **kwargs: None)()
            assert guard.errors[f"begin {hook.target}"] == 1
            assert current_stage() is container, hook.target
            assert {"rl.loop", "rl.rank 0"} == {stage.name for stage in tracing.open}, hook.target


@every_integration
def test_without_a_recording_nothing_of_ours_runs(name: str) -> None:
    """After uninstrument() a wrapper that somebody kept only passes the call on."""
    for hook in INTEGRATIONS[name].HOOKS:
        never = replace(failing(hook), stage=None if hook.collective is not None else fails)
        assert 5 == wrap(never, lambda x: x)(5)
    assert {} == guard.errors


# --- arguments --------------------------------------------------------------------------------------------------------


def generic(owner: Any, first: Any, second: Any = 2, *rest: Any, only: Any = None, **more: Any) -> None:
    """Stand for a target that is not installed."""


def double(name: str, hook: Hook, body: str) -> Callable[..., Any]:
    """Make a function with the parameters of a target."""
    found = find(hook.target) if applies(name) else None
    original = generic if found is None else inspect.getattr_static(*found)
    try:
        given = inspect.signature(getattr(original, "__func__", original)).parameters.values()
    except ValueError:  # written in C: its arguments have no names
        given = inspect.signature(generic).parameters.values()
    bare = [one.replace(annotation=one.empty, default=one.empty if one.default is one.empty else 0) for one in given]
    names: dict[str, Any] = {}
    exec(f"{'async ' * (hook.asked is not None)}def host{inspect.Signature(bare)}:\n    {body}", names)
    return names["host"]  # type: ignore[no-any-return]


def seeing(hook: Hook, see: Callable[..., Any]) -> Hook:
    """Let every part of a row see the arguments of a call."""
    if hook.watch is not None or hook.made is not None:
        return replace(hook, watch=hook.watch and see, made=hook.made and see)
    if hook.behind is not None:
        return replace(hook, behind=lambda args: see(args, {}))
    if hook.asked is not None:
        return replace(hook, before=see, asked=lambda call, *_: see(call.args, call.kwargs))
    if hook.collective is not None:
        return replace(hook, before=see)
    return replace(hook, stage="rl.reward", attributes=see, before=see, capture=see, after=see, failed=see, during="")


def call(host: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call a function; of an asynchronous generator take the first item."""
    try:
        items = host(*args, **kwargs)
        if hasattr(items, "__anext__"):
            items.__anext__().send(None)
    except (StopIteration, ZeroDivisionError):
        pass


@every_integration
@pytest.mark.parametrize("body", ["return 5", "1 // 0"], ids=["returns", "fails"])
def test_arguments_are_seen_however_they_are_handed_over(quiet: Recording, name: str, body: str) -> None:
    """By position or by keyword: each is at its position, and has its name where the row asks for names."""
    for hook in INTEGRATIONS[name].HOOKS:
        if hook.marks or (body != "return 5" and (hook.made or hook.behind)):
            continue  # sees none
        host = double(name, hook, body if hook.asked is None else "yield 5")
        parameters = inspect.signature(host).parameters.values()
        given = {one.name: object() for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD}
        only = {one.name: object() for one in parameters if one.kind is one.KEYWORD_ONLY}
        given |= {key: None for key in given if key == "group"}
        seen: list[Any] = []

        def see(args: Any, kwargs: Any, *_: Any, seen: list[Any] = seen) -> None:
            seen.append((args, kwargs))

        wrapped, values = wrap(seeing(hook, see), host), tuple(given.values())
        forms = []
        for count in (len(values), 1, 0):
            call(wrapped, *values[:count], **dict(list(given.items())[count:]), **only)
            forms.append([(args, {**given, **only} == kwargs if hook.by_name else None) for args, kwargs in seen])
            seen.clear()
        assert [(values, True if hook.by_name else None)] == list(dict.fromkeys(forms[0] or forms[1])), hook.target
        assert forms[0] == forms[1] == forms[2], hook.target


# --- frames -----------------------------------------------------------------------------------------------------------


class Told(logging.Handler):
    """Keeps the lines that warnings and log records name as their callers'."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line of a log record."""
        self.lines.append((record.pathname, record.lineno))


def tell() -> None:
    """Warn and log, as from the caller of the function that calls this."""
    warnings.warn("of the caller", stacklevel=3)
    if sys.version_info >= (3, 11):
        logging.getLogger("host").warning("of the caller", stacklevel=3)


def telling() -> None:
    """Stand for a target."""
    tell()


async def telling_later() -> None:
    """Stand for a coroutine function."""
    tell()


def telling_items() -> Iterator[int]:
    """Stand for a generator."""
    tell()
    yield 1


async def telling_items_later() -> AsyncIterator[int]:
    """Stand for an asynchronous generator."""
    tell()
    yield 1


async def call_all(hook: Hook) -> set[int]:
    """Call all kinds of target that a row may have; give the lines."""
    plain, later, items, items_later = (
        wrap(hook, host) for host in (telling, telling_later, telling_items, telling_items_later)
    )
    line = sys._getframe().f_lineno
    plain()
    await later()
    if hook.watch is not None:
        list(items())
    if hook.watch is not None or hook.asked is not None:
        [one async for one in items_later()]
    is_watched, is_asked = hook.watch is not None, hook.asked is not None
    return {line + 1, line + 2, *[line + 4] * is_watched, *[line + 6] * (is_watched or is_asked)}


@pytest.mark.guarded
@every_integration
def test_a_stack_level_does_not_count_our_frames(quiet: Recording, name: str) -> None:
    """Warnings and log records of a target name the line that calls it, also of generators and coroutines."""
    told, logger = Told(), logging.getLogger("host")
    logger.addHandler(told)
    for hook in rows_of(name):
        with warnings.catch_warnings(record=True) as caught, pytest.raises(StopIteration) as ended:
            warnings.simplefilter("always")
            call_all(hook).send(None)
        told.lines += [(one.filename, one.lineno) for one in caught]
        assert {(__file__, line) for line in ended.value.value} == set(told.lines), hook.target
        told.lines.clear()
    logger.removeHandler(told)


def test_a_traceback_shows_our_lines(recording: Recording) -> None:
    """Where a host raises: our file is found by the name that its code has."""

    def host() -> None:
        raise ValueError("host")

    with pytest.raises(ValueError) as caught:
        wrap(Hook(target="m:f", stage="rl.reward"), host)()
    frames = traceback.extract_tb(caught.tb)
    assert ["wrapped", "result = original(*args, **kwargs)", 'raise ValueError("host")'] == [
        "wrapped" if "wrap(" in str(frame.line) else frame.line for frame in frames
    ]


def test_a_constructor_is_called_without_frames_of_torch(stubbed: Recording) -> None:
    """Where torch.compile is known and does not look at what is called."""
    pytest.importorskip("torch._dynamo")
    stubbed.start("torch")
    assert hooking.uncompiled(telling) is telling


def test_a_decorated_function_does_not_count_our_frame(recording: Recording) -> None:
    """The caller's line is named."""

    @otel_rl.stage("reward")
    def score() -> None:
        warnings.warn("of the caller", stacklevel=2)

    with pytest.warns(UserWarning, match="of the caller") as caught:
        line = sys._getframe().f_lineno
        score()
    assert [(__file__, line + 1)] == [(one.filename, one.lineno) for one in caught]


# --- undo -------------------------------------------------------------------------------------------------------------


def held(hooks: list[Hook]) -> dict[str, Any]:
    """Read what every target is now, without binding it."""
    found = {hook.target: find(hook.target) for hook in hooks}
    return {target: inspect.getattr_static(*place) for target, place in found.items() if place is not None}


@every_integration
def test_uninstrument_restores_the_identical_objects(stubbed: Recording, name: str) -> None:
    """Of every row; and every one was replaced meanwhile."""
    if not applies(name):
        pytest.skip(f"{name} is not installed")
    hooks = list(INTEGRATIONS[name].HOOKS)
    before = held(hooks)
    stubbed.start(name)
    meanwhile = held(hooks)
    assert [] == [target for target in before if before[target] is meanwhile[target]]
    otel_rl.uninstrument()
    after = held(hooks)
    assert [] == [target for target in before if before[target] is not after[target]]
    assert {} == modules_that_hold(meanwhile)


def modules_that_hold(replacements: dict[str, Any]) -> dict[str, str]:
    """Find replacements that some module still holds."""
    ids = {id(value): target for target, value in replacements.items()}
    return {
        f"{path}:{name}": ids[id(value)]
        for path, module in list(sys.modules.items())
        for name, value in list(vars(module).items() if hasattr(module, "__dict__") else ())
        if id(value) in ids
    }


def test_attachments_are_taken_back(stubbed: Recording) -> None:
    """Torch forgets our optimizer hooks, our compile probe and our callback."""
    torch = pytest.importorskip("torch")
    from torch.optim import optimizer

    def attached() -> tuple[int, int]:
        return len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)

    before = attached()
    stubbed.start("torch")
    assert tuple(number + 1 for number in before) == attached()
    compiler = torch.compiler
    assert (hooking.is_compiling, hooking.is_tracing) == (compiler.is_compiling, compiler.is_dynamo_compiling)
    assert hooking.compiler is compiler
    assert entry._parts.patches._detach
    otel_rl.uninstrument()
    assert before == attached()
    assert not hooking.is_compiling()
    assert not hooking.is_tracing()
    assert not hooking.compiler._is_compiling_flag


# --- pickling ---------------------------------------------------------------------------------------------------------


@every_integration
def test_a_wrapped_function_can_be_sent_to_another_process(recording: Recording, name: str) -> None:
    """As Ray does, which pickles functions of the main module by value; there it meets that process's own state."""
    cloudpickle = pytest.importorskip("cloudpickle")

    def host(x: int) -> int:
        return x + 1

    host.__module__ = "__main__"
    for hook in INTEGRATIONS[name].HOOKS:
        wrapped = wrap(hook, host)
        there = cloudpickle.loads(cloudpickle.dumps(wrapped))
        assert there is not wrapped
        assert there.__globals__["state"] is state, hook.target


def test_a_decorated_function_can_be_sent_to_another_process(recording: Recording) -> None:
    """Sync and async."""
    cloudpickle = pytest.importorskip("cloudpickle")

    @otel_rl.stage("reward", batch_size=1)
    def score(x: int) -> int:
        return x + 1

    @otel_rl.stage("reward")
    async def score_later(x: int) -> int:
        return x + 1

    score.__module__ = score_later.__module__ = "__main__"
    there, later = (cloudpickle.loads(cloudpickle.dumps(function)) for function in (score, score_later))
    with otel_rl.step(1):
        assert (3, 3) == (there(2), asyncio.run(later(2)))
    assert 2 == sum(span.name == "rl.reward" for span in recording.stop().spans())
