"""Tests of replacing attributes of other packages, and of undoing it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import otel_rl
from otel_rl import entry, guard, vocabulary
from otel_rl.hooks import Attachment, CallbackHook, CollectiveHook, Memory, ReturnHook, StageHook
from otel_rl.hooks.hook import wrap
from otel_rl.hooks.install import Patches, find
from otel_rl.hooks.overrides import Overrides
from otel_rl.process.hooked import hooking
from otel_rl.process.state import state
from otel_rl.trace.memory import tracing
from tests.fixtures import Recording, Tree, trees

SOURCE = """
def work(x, y=1):
    "Add."
    return x + y

async def wait(x):
    return x

def fail(error):
    raise error

class Base:
    def inherited(self):
        return "base"

class Thing(Base):
    def method(self, x):
        return self, x

    @staticmethod
    def static(x):
        return x

    @classmethod
    def made(cls, x):
        return cls, x
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that nobody has imported yet; its name."""
    name = f"hosted_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_user.py").write_text(f"from {name} import work\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in (name, f"{name}_user"):
        sys.modules.pop(module, None)


def load(name: str) -> Any:
    """Import by name."""
    return __import__(name)


def below(recording: Recording) -> tuple[Tree, ...]:
    """End the recording and give what is below the container of its only step."""
    return next(tree for tree in trees(recording.stop()) if tree.name == "rl.loop").below[0].below


@pytest.mark.parametrize("before", [False, True])
def test_a_target_is_replaced_and_restored(package: str, before: bool) -> None:
    """Whether its module is imported before or after us; the identical object comes back."""
    patches = Patches()
    module = load(package) if before else None
    patches.install(StageHook(target=f"{package}:work", stage="x"))
    if module is None:
        assert package not in sys.modules
    module = load(package)
    (patch,) = patches.applied
    original = patch.original
    assert (module.work is not original, "work", "Add.") == (True, module.work.__name__, module.work.__doc__)
    assert inspect.signature(original) == inspect.signature(module.work)
    patches.undo()
    assert module.work is original
    assert ([], set()) == (patches.applied, patches._wanted)


@pytest.mark.parametrize("name", ["method", "static", "made", "inherited"])
def test_every_kind_of_method_is_restored(package: str, name: str) -> None:
    """The very descriptor; what was inherited is inherited again."""
    module, patches = load(package), Patches()
    own = vars(module.Thing).get(name)
    patches.install(StageHook(target=f"{package}:Thing.{name}", stage="x"))
    thing = module.Thing()
    results = {
        "method": lambda: thing.method(5) == (thing, 5),
        "static": lambda: thing.static(5) == module.Thing.static(5) == 5,
        "made": lambda: thing.made(5) == (module.Thing, 5),
        "inherited": lambda: thing.inherited() == "base",
    }
    assert vars(module.Thing)[name] is not own
    assert results[name]()
    patches.undo()
    assert vars(module.Thing).get(name) is own
    assert results[name]()


def test_what_a_module_imported_meanwhile_is_restored_too(package: str) -> None:
    """``from package import work`` while it was replaced."""
    patches = Patches()
    patches.install(StageHook(target=f"{package}:work", stage="x"))
    user = load(f"{package}_user")
    module = sys.modules[package]
    assert user.work is module.work
    patches.undo()
    assert user.work is module.work
    assert "work" == user.work.__qualname__ and not hasattr(user.work, "__wrapped__")


def test_a_name_that_holds_our_replacement_is_replaced_by_its_own(package: str) -> None:
    """Two targets, one function: each call is one stage, and undoing gives the original to both."""
    patches = Patches()
    patches.install(StageHook(target=f"{package}:work", stage="x"))
    patches.install(StageHook(target=f"{package}_user:work", stage="x"))
    user = load(f"{package}_user")
    module = sys.modules[package]
    assert user.work.__wrapped__ is module.work.__wrapped__
    original = module.work.__wrapped__
    patches.undo()
    assert user.work is module.work is original


class Own:
    """Makes classes of a program that are derived from a package's."""

    def __init__(self, module: Any) -> None:
        class Between(module.Thing):  # type: ignore[misc]
            def method(self, x: Any) -> Any:
                return "between", super().method(x)

        class Last(Between):
            def method(self, x: Any) -> Any:
                return "last", super().method(x)

            def inherited(self) -> str:
                return "replaced"

            static = staticmethod(len)

        self.between, self.last = Between, Last
        self.methods = {cls: dict(vars(cls)) for cls in (Between, Last, module.Thing, module.Base)}


def test_overrides_are_hooked_once_and_restored(package: str, recording: Recording) -> None:
    """In the class that an object finds first, whichever classes it has between; also where it calls nothing else."""
    module, patches, ended = load(package), Patches(), []
    own = Own(module)
    for target in ("Thing.method", "Thing.static", "Base.inherited"):
        name = target.partition(".")[2]
        after = functools.partial(lambda name, *_: ended.append(name), name)
        patches.install(StageHook(target=f"{package}:{target}", stage=name, after=after))
    between, last, thing = own.between(), own.last(), module.Thing()
    overrides = Overrides(patches)
    for kind in (own.last, own.between, own.last, module.Thing):
        overrides.follow(kind())
    with otel_rl.step(1):
        assert (thing, 5) == thing.method(5)
        assert ("between", (between, 5)) == between.method(5)
        assert ("last", ("between", (last, 5))) == last.method(5)
        assert ("base", "replaced") == (thing.inherited(), last.inherited())
        assert (5, 2) == (between.static(5), last.static([1, 2]))
    assert "method" == own.last.method.__name__
    expected = [*["method"] * 3, *["inherited"] * 2, "static"]
    assert (expected, expected) == (ended, [stage.name for stage in below(recording)])
    patches.undo()
    assert own.methods == {cls: dict(vars(cls)) for cls in own.methods}
    assert ("last", ("between", (last, 5))) == last.method(5)


def test_overrides_may_take_any_arguments(package: str, recording: Recording) -> None:
    """Their hooks see what the method that they override has a position for; our frames are no callers of theirs."""
    module, patches, seen = load(package), Patches(), []

    class Own(module.Thing):  # type: ignore[misc]
        def method(self, *args: Any, **kwargs: Any) -> Any:
            warnings.warn("of the caller", stacklevel=2)
            return super().method(*args, **kwargs)

    patches.install(
        CallbackHook(target=f"{package}:Thing.method", before=lambda args, kwargs: seen.append((args, kwargs)))
    )
    Overrides(patches).follow(Own)
    own = Own()
    with pytest.warns(UserWarning, match="of the caller") as caught:
        line = sys._getframe().f_lineno
        assert [(own, 5), (own, 6)] == [own.method(5), own.method(x=6)]
    assert [((own, 5), {}), ((own, 6), {"x": 6})] == seen
    assert [(__file__, line + 1)] * 2 == [(one.filename, one.lineno) for one in caught]
    patches.undo()


def test_what_somebody_else_replaced_after_us_stays(package: str, recording: Recording) -> None:
    """Theirs is not removed, and our part of it only passes calls on."""
    module, patches = load(package), Patches()
    patches.install(StageHook(target=f"{package}:work", stage="x"))
    ours = module.work

    def theirs(*args: Any) -> Any:
        return ours(*args) + 100

    module.work = theirs
    patches.undo()
    recording.stop()
    assert (theirs, 103, 0) == (module.work, module.work(2), len(state.queue))


@pytest.mark.guarded
def test_a_target_that_does_not_exist_is_named(package: str, caplog: pytest.LogCaptureFixture) -> None:
    """As an error of ours, once, unless it need not exist in every version."""
    load(package)
    patches = Patches()
    targets = [f"{package}:{path}" for path in ("gone", "Thing.gone", "Gone.method", "work.gone.method")]
    for target in targets:
        patches.install(StageHook(target=target, stage="x"))
        patches.install(StageHook(target=target, stage="y", optional=True))
    assert {f"find {target}": 1 for target in targets} == dict(guard.errors)
    assert [f"otel_rl could not find {target}" for target in targets] == [
        record.getMessage().partition(";")[0] for record in caplog.records
    ]
    assert [] == patches.applied
    assert None is find(f"{package}:gone")


def test_after_undo_a_late_import_is_left_alone(package: str) -> None:
    """What was wanted then is wanted no more."""
    patches = Patches()
    patches.install(StageHook(target=f"{package}:work", stage="x"))
    patches.attach(Attachment(package, lambda module: pytest.fail("attached")))
    patches.undo()
    assert not hasattr(load(package).work, "__wrapped__")


def test_an_attachment_is_taken_back(package: str) -> None:
    """Once, in reverse order."""
    told: list[str] = []

    def attach(name: str) -> Any:
        return lambda module: (told.append(f"+{name} {module.__name__ == package}"), lambda: told.append(f"-{name}"))[1]

    patches = Patches()
    patches.attach(Attachment(package, attach("a")))
    patches.attach(Attachment(package, attach("b")))
    load(package)
    patches.undo()
    patches.undo()
    assert (["+a True", "+b True"], ["-b", "-a"]) == (sorted(told[:2]), sorted(told[2:], reverse=True))


@pytest.mark.guarded
def test_an_attachment_that_fails_does_not_stop_the_import(package: str) -> None:
    """Nor does one whose end fails stop the others'."""
    patches, told = Patches(), []

    def fails(module: Any) -> Any:
        raise RuntimeError

    def ends_badly() -> None:
        raise RuntimeError

    patches.attach(Attachment(package, fails))
    patches.attach(Attachment(package, lambda module: lambda: told.append(1)))
    patches.attach(Attachment(package, lambda module: ends_badly))
    assert load(package).work(1) == 2
    patches.undo()
    assert ([1], {f"attach to {package}": 1, "undo an attachment": 1}) == (told, guard.errors)


# --- what is recorded -------------------------------------------------------------------------------------------------


def install(package: str, target: str, kind: Any = None, **options: Any) -> Any:
    """Patch one target of the package for the test's recording; gives the module."""
    module, kind = load(package), kind or (StageHook if "stage" in options else CallbackHook)
    entry._parts.patches.install(kind(target=f"{package}:{target}", **options))
    return module


def test_a_call_is_a_stage_with_what_is_captured(package: str, recording: Recording) -> None:
    """``before`` runs before it, ``after`` behind its end, with arguments and result."""
    told: list[Any] = []
    module = install(
        package,
        "work",
        stage="rl.reward",
        before=lambda args, kwargs: told.append(("before", args, kwargs, len(tracing.open))),
        capture=lambda args, kwargs, result: {"sum": result, "odd": (1,)},
        after=lambda args, kwargs, result: told.append(("after", result, len(tracing.open))),
    )
    with otel_rl.step(1):
        assert 5 == module.work(2, y=3)
    run = recording.stop()
    (span,) = (span for span in run.spans(None) if span.name == "rl.reward")
    assert {"sum": 5, "odd": (1,)} == span.attributes
    assert [("before", (2, 3), {"y": 3}, 2), ("after", 5, 2)] == told


@pytest.mark.guarded
def test_what_a_stage_says_may_depend_on_the_call(package: str, recording: Recording) -> None:
    """It says so from its begin on, however the call ends, and behind ``before``; where ours fails it is a stage."""
    told: list[str] = []
    options = {"before": lambda args, kwargs: told.append("before"), "stage": "rl.reward"}
    module = install(package, "fail", attributes=lambda args, kwargs: {"told": len(told), "x": str(args[0])}, **options)
    install(package, "work", attributes=lambda args, kwargs: {"x": args[5]}, **options)
    with otel_rl.step(1):
        with pytest.raises(ValueError):
            module.fail(ValueError("x"))
        assert 5 == module.work(2, y=3)
    found = [span.attributes for span in recording.stop().spans(None) if span.name == "rl.reward"]
    assert [{}, {"told": 1, "x": "x", vocabulary.ERROR_TYPE: "ValueError"}] == found  # later ones are first
    assert {f"describe {package}:work": 1} == guard.errors


@pytest.mark.guarded
def test_what_is_behind_a_call_sees_its_arguments(recording: Recording) -> None:
    """Only of one that returned, and never without a recording; our failure is counted."""
    looked: list[tuple[Any, ...]] = []

    def look(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        looked.append(args)
        raise RuntimeError("ours")

    divide = wrap(ReturnHook(target="x:divide", after=look), lambda owner, x, by=1: x // by)
    assert (5, 3) == (divide("a", 5), divide("b", 6, by=2))
    with pytest.raises(ZeroDivisionError):
        divide("a", 8, 0)
    assert ([("a", 5), ("b", 6, 2)], {"follow x:divide": 2}) == (looked, guard.errors)
    recording.stop()
    assert (9, 2) == (divide("a", 9), len(looked))


def test_the_stage_may_depend_on_the_call(package: str, recording: Recording) -> None:
    """None: no stage, but what follows the call still hears of it."""
    heard: list[Any] = []
    module = install(
        package,
        "work",
        stage=lambda args, kwargs: "odd" if args[0] % 2 else None,
        after=lambda args, kwargs, result: heard.append(result),
    )
    with otel_rl.step(1):
        assert [2, 3, 4] == [module.work(x) for x in (1, 2, 3)]
    assert ([2, 3, 4], (Tree("odd", 0, 0), Tree("odd", 0, 0))) == (heard, below(recording))


def test_a_call_below_a_stage_of_the_same_name_belongs_to_it(package: str, recording: Recording) -> None:
    """Nested and recomputed calls count once."""
    module = install(package, "work", stage="rl.checkpoint")
    with otel_rl.step(1), otel_rl.stage("checkpoint"):
        module.work(1)
        with otel_rl.stage("tool"):
            module.work(1)
    expected = Tree("rl.checkpoint", 0, 0, (Tree("tool", 0, 0, (Tree("rl.checkpoint", 0, 0),)),))
    assert (expected,) == below(recording)


def test_a_host_error_passes_and_ends_the_stage(package: str, recording: Recording) -> None:
    """The very object; ``failed`` hears of it, ``after`` and ``capture`` do not."""
    heard: list[Any] = []
    never = lambda *args: pytest.fail("called")  # noqa: E731
    module = install(
        package,
        "fail",
        stage="rl.reward",
        capture=never,
        after=never,
        failed=lambda args, kwargs, error: heard.append(error),
    )
    for error in (ValueError("x"), KeyboardInterrupt(), StopIteration()):
        with pytest.raises(type(error)) as caught, otel_rl.stage("around"):
            module.fail(error)
        assert caught.value is error
        assert heard.pop() is error
    assert set() == {stage for stage in tracing.open if stage.name == "rl.reward"}


def test_an_asynchronous_target_stays_one(package: str, recording: Recording) -> None:
    """The stage lasts as long as the coroutine."""
    module = install(package, "wait", stage="rl.reward", capture=lambda args, kwargs, result: {"x": result})
    assert inspect.iscoroutinefunction(module.wait)
    with otel_rl.step(1):
        assert [1, 2] == asyncio.run(gather(module.wait(1), module.wait(2)))
    found = [span.attributes for span in recording.stop().spans(None) if span.name == "rl.reward"]
    assert [{"x": 1}, {"x": 2}] == sorted(found, key=lambda attributes: attributes["x"])


@pytest.mark.parametrize("name", ["work", "wait"])
def test_a_call_outside_of_what_it_belongs_to_only_passes(package: str, recording: Recording, name: str) -> None:
    """``during`` names what must be there; a coroutine function heeds it as well."""
    called: list[Any] = []
    memory: Any = Memory()
    memory.open = None
    module = install(package, name, before=lambda args, kwargs: called.append(args), during=(memory, "open"))

    def call(x: int) -> Any:
        result = getattr(module, name)(x)
        return asyncio.run(result) if name == "wait" else result

    call(1)
    memory.open = True
    call(2)
    memory.open = None
    call(3)
    assert [(2,)] == called


async def gather(*waiting: Any) -> list[Any]:
    """Wait for all."""
    return list(await asyncio.gather(*waiting))


def test_an_asynchronous_host_error_is_the_same(package: str, recording: Recording) -> None:
    """Cancellation too."""
    module = install(package, "wait", stage="rl.reward")
    error = asyncio.CancelledError()

    class Fails:
        def __await__(self) -> Any:
            raise error

    async def wait(x: Any) -> Any:
        await x

    wrapped = wrap(StageHook(target=f"{package}:wait", stage="rl.reward"), wait)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wrapped(Fails()))
    assert module.wait.__wrapped__ is not None
    otel_rl.uninstrument()
    assert 3 == asyncio.run(wrap(CallbackHook(target="x:y"), load(package).wait)(3))


@pytest.mark.guarded
@pytest.mark.parametrize("which", ["stage", "before", "capture", "after"])
def test_a_failure_of_ours_is_unseen(package: str, recording: Recording, which: str) -> None:
    """The host has its result, nothing is left open, and the error is counted."""

    def fails(*args: Any) -> Any:
        raise RuntimeError("ours")

    module = install(package, "work", **({"stage": "rl.reward"} | {which: fails}))
    with otel_rl.step(1):
        assert 3 == module.work(2)
        assert {"rl.loop", "rl.rank 0"} == {stage.name for stage in tracing.open}
    what = {"stage": "begin", "before": "begin", "capture": "describe", "after": "follow"}[which]
    assert {f"{what} {package}:work": 1} == guard.errors


@pytest.mark.guarded
@pytest.mark.parametrize("which", ["stage", "before", "failed"])
def test_a_failure_of_ours_does_not_hide_the_hosts(package: str, recording: Recording, which: str) -> None:
    """The host has its own exception, without ours in its context."""

    def fails(*args: Any) -> Any:
        raise RuntimeError("ours")

    module = install(package, "fail", **({"stage": "rl.reward"} | {which: fails}))
    error = ValueError("theirs")
    with pytest.raises(ValueError) as caught:
        module.fail(error)
    assert (caught.value is error, error.__context__) == (True, None)


@pytest.mark.parametrize("way", ["Dynamo traces the caller", "a graph is made by other means"])
def test_while_compiling_and_after_us_a_wrapper_only_passes_on(
    package: str, recording: Recording, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Nothing is opened and nothing is called."""
    never: Any = lambda *args: pytest.fail("called")  # noqa: E731
    module = install(package, "work", stage=never, before=never, after=never)
    install(package, "Thing.static", CollectiveHook, before=never)
    with monkeypatch.context() as compiling:
        if way == "Dynamo traces the caller":
            compiling.setattr(hooking, "is_tracing", lambda: True)
        else:
            compiling.setattr(hooking, "compiler", SimpleNamespace(_is_compiling_flag=True))
        assert (2, 5) == (module.work(1), module.Thing.static(5))
    state.on = False
    assert (2, 5) == (module.work(1), module.Thing.static(5))
    state.on = True


def test_a_strange_thing_among_the_modules_is_survived(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs put objects there that are none, or that fail when they are touched."""

    class Strange(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name == "__dict__":
                return {}
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "strange_1", Strange("strange"))
    monkeypatch.setitem(sys.modules, "strange_2", object())
    monkeypatch.setitem(sys.modules, "strange_3", None)
    module, patches = load(package), Patches()
    patches.install(StageHook(target=f"{package}:work", stage="x"))
    patches.undo()
    assert not hasattr(module.work, "__wrapped__")


def test_a_table_that_was_keyed_by_a_replacement_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile looks collectives up so; the order of the table stays."""
    module = types.ModuleType("keyed_module")
    module.function = original = lambda: 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyed_module", module)
    patches = Patches()
    patches.install(CallbackHook(target="keyed_module:function"))
    module.table = {"first": 0, module.function: 1, "last": 2}  # type: ignore[attr-defined]
    patches.undo()
    assert ["first", original, "last"] == list(module.table)


@pytest.mark.guarded
def test_what_is_made_is_seen_and_our_failure_is_not(recording: Recording) -> None:
    """Behind the call alone, and only while somebody records."""
    seen: list[Any] = []

    def see(args: Any, kwargs: Any, result: Any) -> None:
        seen.append((args, kwargs, result))
        raise ValueError("ours")

    wrapped = wrap(ReturnHook(target="m:C.__init__", after=see, is_constructor=True), lambda x, y=0: x + y)
    state.on = False
    assert 3 == wrapped(1, y=2)
    state.on = True
    assert 7 == wrapped(3, y=4)
    assert [((3, 4), {"y": 4}, 7)] == seen
    assert 1 == guard.errors["follow m:C.__init__"]


@pytest.mark.guarded
def test_a_class_that_ray_sends_by_value_is_no_target(package: str) -> None:
    """To replace what the module holds would record nothing."""
    module, patches = load(package), Patches()
    module.Actor = SimpleNamespace(update=lambda: 5, __ray_metadata__=None)
    patches.install(StageHook(target=f"{package}:Actor.update", stage="rl.train"))
    why = "Ray sends this class by value, so the hook belongs into `arriving`"
    assert (f"hook {package}:Actor.update: {why}", []) == (next(iter(guard.errors)), patches.applied)


@pytest.mark.guarded
def test_a_class_that_arrives_without_a_target_is_named() -> None:
    """If it is of the framework: another may have the same name. It is counted each time, and logged once."""
    patches, hook = Patches(), StageHook(target="Actor.update", stage="rl.train")
    patches.expect(hook, {"theirs"})
    patches.expect(StageHook(target="Actor.reset", stage="rl.train", optional=True), {"theirs"})
    patches.expect(StageHook(target="*.generate", stage="rl.train"), {"theirs"})
    actor = type("Actor", (), {"__module__": "theirs.actors"})
    for kind in (
        actor,
        type("Derived", (actor,), {}),
        type("Actor", (), {"__module__": "others"}),
        type("Other", (), {}),
    ):
        patches.arrived(kind)
    assert ({"find Actor.update": 2}, []) == (dict(guard.errors), patches.applied)
