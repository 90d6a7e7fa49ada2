"""Decorators that decide by their caller's frame, and functions that look at it: neither finds a frame of ours."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import otel_rl
from otel_rl import guard
from otel_rl.hooks import CallbackHook, StageHook
from otel_rl.hooks.hook import hook_of, wrap
from otel_rl.hooks.install import Patches
from otel_rl.hooks.overrides import Overrides
from tests.fixtures import Recording
from tests.programs.launch import run
from tests.programs.recorded import Recorded

HOOK = StageHook(target="fake_awaiting:Manager.update", stage="rl.sync", capture=lambda args, kwargs, result: {"x": 1})


def awaiting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a coroutine unless a coroutine calls, which will await it."""
    calls = 0

    @functools.wraps(function)
    def decide(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        coroutine = function(*args, **kwargs)
        caller = inspect.currentframe().f_back  # type: ignore[union-attr]
        assert caller is not None
        if caller.f_code.co_flags & inspect.CO_COROUTINE:
            return coroutine
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, coroutine).result()

    decide.calls = lambda: calls  # type: ignore[attr-defined]
    return decide


class Manager:
    """What a framework has."""

    @awaiting
    async def update(self, number: int, *, more: int = 0) -> int:
        """Take a while."""
        await asyncio.sleep(0)
        return number + more

    @classmethod
    @awaiting
    async def make(cls, number: int) -> int:
        """Take a while."""
        await asyncio.sleep(0)
        return number

    @staticmethod
    @awaiting
    async def give(number: int) -> int:
        """Take a while."""
        await asyncio.sleep(0)
        return number


class Derived(Manager):
    """What a program derives from it."""

    @awaiting
    async def update(self, number: int, *, more: int = 0) -> int:
        """Take longer."""
        return 10 * await super().update(number, more=more)


ORIGINALS = dict(vars(Manager))


@pytest.fixture
def patches(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patches]:
    """Patches of a module with the manager, undone at the end."""
    module = ModuleType("fake_awaiting")
    module.Manager = Manager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_awaiting", module)
    made = Patches()
    yield made
    made.undo()
    assert dict(vars(Manager)) == ORIGINALS


def test_a_decorator_that_looks_at_its_caller_decides_as_without_us(recording: Recording, patches: Patches) -> None:
    """The stage lasts as long as the coroutine, and the copy shares what the decorator remembers."""
    patches.install(HOOK)

    async def train() -> list[int]:
        def from_a_plain_function() -> int:
            return Manager().update(2, more=1)  # type: ignore[return-value]

        return [await Manager().update(1), from_a_plain_function()]

    with otel_rl.step(1):
        assert [1, 3] == asyncio.run(train())
    assert "update" == Manager.update.__name__
    assert Manager.update.calls() == ORIGINALS["update"].calls() > 1  # type: ignore[attr-defined]
    assert [1, 1] == [span.attributes["x"] for span in recording.stop().spans(None) if span.name == "rl.sync"]


@pytest.mark.parametrize("name", ["make", "give"])
def test_static_and_class_methods_are_served_as_well(recording: Recording, patches: Patches, name: str) -> None:
    """The decorator lies inside of them."""
    patches.install(StageHook(target=f"fake_awaiting:Manager.{name}", stage="rl.sync"))

    async def train() -> list[int]:
        return [await getattr(owner, name)(5) for owner in (Manager, Manager())]

    with otel_rl.step(1):
        assert [5, 5] == asyncio.run(train())
    assert type(ORIGINALS[name]) is type(vars(Manager)[name])
    assert 2 == sum(span.name == "rl.sync" for span in recording.stop().spans(None))


def test_an_override_below_the_decorator_counts_once(recording: Recording, patches: Patches) -> None:
    """Though the method that it calls is hooked, too."""
    seen: list[Any] = []
    hook = CallbackHook(target=HOOK.target, after=lambda args, kwargs, result: seen.append(result))
    patches.install(hook)
    Overrides(patches).follow(Derived())
    original = Derived.update.__wrapped__  # type: ignore[attr-defined]

    async def train() -> int:
        return await Derived().update(1)

    assert 10 == asyncio.run(train())
    assert [10] == seen
    patches.undo()
    assert Derived.update.__wrapped__ is original.__wrapped__  # type: ignore[attr-defined]


CALL_THERE = """
import asyncio, pickle, sys, otel_rl
otel_rl.instrument([])
there = pickle.load(open(sys.argv[1], "rb"))

async def train():
    return [await there().update(1), await there.make(2), await there.give(3)]

with otel_rl.step(1):
    print(asyncio.run(train()))
"""


@pytest.mark.slow
def test_a_class_with_such_methods_can_be_sent_to_another_process(patches: Patches, tmp_path: Path) -> None:
    """By value, as Ray sends classes of the main module; there its calls are recorded, too."""
    cloudpickle = pytest.importorskip("cloudpickle")
    for name in ("update", "make", "give"):
        patches.install(StageHook(target=f"fake_awaiting:Manager.{name}", stage="rl.sync"))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    (tmp_path / "class").write_bytes(cloudpickle.dumps(Manager))
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    there = tmp_path / "there"
    there.mkdir()
    assert "[1, 2, 3]" in run(there, "-c", CALL_THERE, str(tmp_path / "class"), OTEL_RL_SIDECAR="false")
    assert ["rl.sync"] * 3 == [node.name for node in Recorded(there / "runs").nodes if node.name == "rl.sync"]


def test_a_plain_decorator_around_a_coroutine_function_is_recorded_to_its_end(recording: Recording) -> None:
    """Whether or not it looks at frames: its own call ends before the coroutine begins."""

    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    @functools.wraps(work)
    def decorated() -> Any:
        return work()

    assert not inspect.iscoroutinefunction(decorated)
    with otel_rl.step(1):
        assert 5 == asyncio.run(wrap(HOOK, decorated)())
    assert [1] == [span.attributes["x"] for span in recording.stop().spans(None) if span.name == "rl.sync"]


def looks_itself() -> str:
    """Look at the caller."""
    return sys._getframe(1).f_code.co_name


def hides(function: Callable[..., Any]) -> Callable[..., Any]:
    """Look at the caller, and hold the function where no copy can exchange it."""

    @functools.wraps(function)
    def decide(held: Any = function) -> Any:
        return sys._getframe(1).f_code.co_name, held()

    return decide


@pytest.mark.parametrize(
    "function",
    [looks_itself, staticmethod(looks_itself), hides(dict), awaiting(looks_itself)],
    ids=["function", "static method", "decorated class", "decorated function"],
)
def test_a_function_that_cannot_be_served_is_left_alone(recording: Recording, function: Any) -> None:
    """One error names it."""
    assert wrap(HOOK, function) is function
    assert hook_of(function) is None
    assert 1 == guard.errors.pop("record fake_awaiting:Manager.update: it looks at its caller's frame")


def test_an_attribute_that_looks_at_its_caller_is_left_alone(recording: Recording, patches: Patches) -> None:
    """A function that a program has put on its trainer."""
    patches.install(HOOK)
    manager: Any = Manager()
    manager.update = looks_itself
    Overrides(patches).follow(manager)
    assert vars(manager)["update"] is looks_itself
    (error,) = guard.errors
    assert error.endswith("looks_itself replaced it and looks at its caller's frame")
    guard.errors.clear()
