"""The contract of every hook of every integration: the host notices nothing, and everything is undone."""

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
from pathlib import Path
from typing import Any

import pytest

import otel_rl
from otel_rl import entry
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
from otel_rl.integrations import OURS, choice
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.testing.contract import (
    CHECKS,
    BrokenContractError,
    Check,
    applies,
    check_integration,
    every_hook,
    variants,
)
from tests.fixtures import Recording
from tests.programs.launch import run

INTEGRATIONS = {name: choice.load(name, path) for name, path in OURS.items()}
every_integration = pytest.mark.parametrize("name", list(OURS))


def hooks_of(name: str) -> tuple[Hook, ...]:
    """Return the hooks of an integration of ours."""
    return integration_of(name).hooks


def integration_of(name: str) -> Integration:
    """Return an integration of ours."""
    found = INTEGRATIONS[name]
    assert found is not None
    return found


@pytest.fixture
def quiet(recording: Recording) -> Iterator[Recording]:
    """A recording of two ranks, so that collectives are recorded."""
    state.identify(world_size=2)
    yield recording


@every_integration
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_an_integration_keeps_the_contract(name: str, check: Check) -> None:
    """Each part of it."""
    check(integration_of(name))


def test_no_target_belongs_to_two_integrations() -> None:
    """Each call is recorded once: integrations that hook the same function share one hook."""
    targets = [hook.target for hook in {hook for name in OURS for hook in hooks_of(name)}]
    assert sorted(set(targets)) == sorted(targets)


@every_integration
def test_an_integration_says_where_it_runs(name: str) -> None:
    """In its docstring."""
    assert "Runs in" in str(import_module(OURS[name].partition(":")[0]).__doc__)


# --- arguments --------------------------------------------------------------------------------------------------------


def generic(owner: Any, first: Any, second: Any = 2, *rest: Any, only: Any = None, **more: Any) -> None:
    """Stand for a target that is not installed."""


def double(name: str, hook: Hook, body: str) -> Callable[..., Any]:
    """Make a function with the parameters of a target."""
    found = find(hook.target) if applies(integration_of(name)) else None
    original = generic if found is None else inspect.getattr_static(*found)
    try:
        given = inspect.signature(getattr(original, "__func__", original)).parameters.values()
    except ValueError:  # written in C: its arguments have no names
        given = inspect.signature(generic).parameters.values()
    bare = [one.replace(annotation=one.empty, default=one.empty if one.default is one.empty else 0) for one in given]
    names: dict[str, Any] = {}
    exec(f"{'async ' * (isinstance(hook, GeneratorHook))}def host{inspect.Signature(bare)}:\n    {body}", names)
    return names["host"]  # type: ignore[no-any-return]


def seeing(hook: Hook, see: Callable[..., Any]) -> Hook:
    """Let every function of a hook see the arguments of a call."""
    if isinstance(hook, RequestHook):
        return replace(hook, watch=see)
    if isinstance(hook, RemoteHook):
        return replace(hook, inject=None, extract=see)
    if isinstance(hook, ReturnHook):
        return replace(hook, after=see)
    if isinstance(hook, GeneratorHook):
        return replace(hook, before=see, first=lambda call, *_: see(call.args, call.kwargs))
    if isinstance(hook, (CollectiveHook, BlockHook)):
        return replace(hook, **{"begin" if isinstance(hook, BlockHook) else "before": see})
    if isinstance(hook, SubmittedHook):
        hook = replace(hook, submitted=lambda args, kwargs: (None, None))
    seen = replace(hook, before=see, after=see, failed=see, during=None)
    return replace(seen, stage="rl.reward", attributes=see, capture=see) if isinstance(hook, StageHook) else seen


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
    for hook in hooks_of(name):
        if body != "return 5" and isinstance(hook, (ReturnHook, BlockHook)):
            continue  # sees none
        host = double(name, hook, "yield 5" if isinstance(hook, GeneratorHook) else body)
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


def telling(**more: Any) -> None:
    """Stand for a target."""
    tell()


async def telling_later(**more: Any) -> None:
    """Stand for a coroutine function."""
    tell()


def telling_items(**more: Any) -> Iterator[int]:
    """Stand for a generator."""
    tell()
    yield 1


async def telling_items_later(**more: Any) -> AsyncIterator[int]:
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
    is_watched, is_asked = isinstance(hook, RequestHook), isinstance(hook, GeneratorHook)
    if is_watched:
        list(items())
    if is_watched or is_asked:
        [one async for one in items_later()]
    return {line + 1, line + 2, *[line + 5] * is_watched, *[line + 7] * (is_watched or is_asked)}


@pytest.mark.guarded
@every_integration
def test_a_stack_level_does_not_count_our_frames(quiet: Recording, name: str) -> None:
    """Warnings and log records of a target name the line that calls it, also of generators and coroutines."""
    told, logger = Told(), logging.getLogger("host")
    logger.addHandler(told)
    for hook in variants(integration_of(name)):
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
        wrap(StageHook(target="m:f", stage="rl.reward"), host)()
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
    for hook in every_hook(integration_of(name)):
        wrapped = wrap(hook, host)
        there = cloudpickle.loads(cloudpickle.dumps(wrapped))
        assert there is not wrapped
        assert there.__globals__["state"] is state, hook.target


def class_of_the_program() -> type[Any]:
    """Make a class that is pickled by value, with every kind of method."""

    class Worker:
        def plain(self, x: int, **more: Any) -> int:
            return x + 1

        @classmethod
        def of_class(cls, x: int, **more: Any) -> int:
            return x + len(cls.__name__)

        @staticmethod
        def static(x: int, **more: Any) -> int:
            return x + 2

    Worker.__module__ = "__main__"
    return Worker


CALL_THERE = """
import inspect, pickle, sys, otel_rl
otel_rl.instrument([])
for worker in pickle.load(open(sys.argv[1], "rb")):
    results = [worker().plain(1), worker.of_class(1), worker().of_class(1), worker.static(1), worker().static(1)]
    kinds = [type(inspect.getattr_static(worker, name)).__name__ for name in ("plain", "of_class", "static")]
    print(worker.target, results, kinds, flush=True)  # log lines come between whole lines
"""


@pytest.mark.slow
def test_a_class_with_wrapped_methods_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """As Ray does with actors of the main module: there each method is what it was, and does what it did."""
    cloudpickle = pytest.importorskip("cloudpickle")
    workers, expected = [], []
    for hook in (hook for name in OURS for hook in every_hook(integration_of(name))):
        worker: Any = class_of_the_program()
        worker.target = hook.target
        for method in ("plain", "of_class", "static"):
            setattr(worker, method, wrap(hook, inspect.getattr_static(worker, method)))
        workers.append(worker)
        expected.append(f"{hook.target} [2, 7, 7, 3, 3] ['function', 'classmethod', 'staticmethod']")
    (tmp_path / "workers").write_bytes(cloudpickle.dumps(workers))
    output = run(tmp_path, "-c", CALL_THERE, "workers", OTEL_RL_SIDECAR="false")
    assert expected == [line for line in output.splitlines() if line in expected]


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


# --- what breaks it ---------------------------------------------------------------------------------------------------


class Other(CallbackHook):
    """A hook of a kind that is not known."""


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        ((CallbackHook(target="json:loads"), CallbackHook(target="json:loads")), "two hooks have this target"),
        ((CallbackHook(target="json:gone"),), "the installed package has no such function"),
        ((Other(target="json:loads"),), "it is of none of the kinds of hook"),
    ],
)
def test_a_broken_contract_is_told(hooks: tuple[Hook, ...], expected: str) -> None:
    """With the target and what is wrong."""
    broken = Integration(name="json", package="pytest", supports=">=1", hooks=hooks)
    with pytest.raises(BrokenContractError, match=f"json:[a-z]+: {expected}"):
        check_integration(broken)


def test_a_memory_that_is_not_kept_breaks_the_contract() -> None:
    """It would have one recording's state in the next."""
    broken = Integration(name="json", package="pytest", supports=">=1", hooks=(), memory=Memory())
    with pytest.raises(BrokenContractError, match="the integration json: its memory must be made by keep"):
        check_integration(broken)


def test_a_hook_that_keeps_an_exception_breaks_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that returns something else, or is not undone."""

    def swallow(hook: Hook, original: Any, bind: Any) -> Any:
        async def nothing(*args: Any, **kwargs: Any) -> None:
            pass

        return nothing if inspect.iscoroutinefunction(original) else lambda *args, **kwargs: None

    monkeypatch.setattr(CallbackHook, "replacement", swallow)
    broken = Integration(name="json", package="pytest", supports=">=1", hooks=(CallbackHook(target="json:loads"),))
    for check in CHECKS[2:5]:
        with pytest.raises(BrokenContractError, match=r"json:loads: it must (return|raise) the "):
            check(broken)
