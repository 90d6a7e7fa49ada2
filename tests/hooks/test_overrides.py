"""Tests of what stands in the place of hooked methods: each call counts once, and undoing leaves what others put."""

from __future__ import annotations

import functools
import gc
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import cloudpickle
import dill
import pytest
import wrapt

import otel_rl
from otel_rl import entry
from otel_rl.cli.checks import Check, recorded
from otel_rl.hooks import CallbackHook, Hook, StageHook
from otel_rl.hooks.signatures import fits
from otel_rl.process.hooked import hooking
from otel_rl.report.build import build_report
from otel_rl.report.data.report import Loss
from tests.fixtures import Recording, Tree, trees

NAME = "hosted_trainer"
SOURCE = """
class Trainer:
    def roll(self, prompts, scale=1):
        return ["rolled", self, prompts]

def helper(x):
    return x
"""


class Host:
    """A package with a hooked method and function, and what our hooks have seen of their calls."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.hooks: list[Hook] = []
        self.module: Any = types.ModuleType(NAME)
        sys.modules[NAME] = self.module
        exec(SOURCE, vars(self.module))
        self.original = self.module.Trainer.roll
        self.hook("Trainer.roll", stage="rl.sample")
        self.hook("helper")

    def hook(self, target: str, **options: Any) -> None:
        """Hook a function, and note each call of each part."""

        def note(what: str) -> Callable[..., None]:
            return lambda args, *_: self.seen.append((what, args[-1]))

        self.hooks.append(
            (StageHook if "stage" in options else CallbackHook)(
                target=f"{NAME}:{target}", before=note("before"), after=note("after"), **options
            )
        )
        entry._parts.patches.install(self.hooks[-1])

    def once(self, trainer: Any, recording: Recording) -> None:
        """Call the method and find that it passes, and counts once."""
        hooking.follow(trainer)
        with otel_rl.step(1):
            assert ["rolled", trainer, 7] == trainer.roll(7)
        assert [("before", 7), ("after", 7)] == self.seen
        found = next(tree for tree in trees(recording.stop()) if tree.name == "rl.loop").below[0].below
        assert (Tree("rl.sample", 0, 0),) == found


@pytest.fixture
def host(recording: Recording) -> Iterator[Host]:
    """The package, hooked."""
    yield Host()
    del sys.modules[NAME]


# --- methods that are replaced ----------------------------------------------------------------------------------------


def rewritten(kind: Any) -> None:
    """Write it anew from its source, with other names of its arguments."""
    kind.roll = lambda self, texts, scale=1, more=None: ["rolled", self, texts]


def closed_over(kind: Any) -> None:
    """Call the former one."""
    former = kind.roll
    kind.roll = lambda self, *args, **kwargs: former(self, *args, **{**kwargs})


def renamed(kind: Any) -> None:
    """Call the former one by another name."""
    kind._roll = kind.roll
    kind.roll = lambda self, prompts, scale=1: self._roll(prompts, scale)


def halfway(kind: Any) -> None:
    """Hold the former one without a call of it."""
    former = kind.roll
    kind.roll = lambda self, prompts, scale=1: ["rolled", self, prompts] if prompts else former(self, prompts)


def twice(kind: Any) -> None:
    """Replace what was replaced."""
    closed_over(kind)
    renamed(kind)


def wrapped(kind: Any) -> None:
    """Put an object in its place."""
    wrapt.wrap_function_wrapper(kind, "roll", lambda function, self, args, kwargs: function(*args, **kwargs))


def partly(kind: Any) -> None:
    """Put another kind of method in its place."""
    kind.roll = functools.partialmethod(kind.roll, scale=2)


def mocked(kind: Any) -> None:
    """Put in its place what is called without the object."""
    kind.roll = mock.Mock(side_effect=lambda prompts: ["rolled", TRAINERS[-1], prompts])


TRAINERS: list[Any] = []
OF_CLASSES = (rewritten, closed_over, renamed, halfway, twice, wrapped, partly, mocked)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("replace", OF_CLASSES, ids=lambda one: one.__name__)
def test_a_method_that_another_library_replaces_counts_once(
    host: Host, recording: Recording, replace: Any, is_late: bool
) -> None:
    """Before or after the object is made; when all is undone the class has what the library put there."""
    kind = host.module.Trainer
    TRAINERS[:] = [kind()]
    if is_late:
        hooking.follow(TRAINERS[0])
    replace(kind)
    theirs = dict(vars(kind))
    host.once(TRAINERS[0], recording)
    assert theirs == dict(vars(kind))
    assert ["rolled", TRAINERS[0], 8] == TRAINERS[0].roll(8)


@pytest.mark.parametrize("kind", ["closed over", "partial", "bound", "of the class"])
def test_an_attribute_of_an_object_counts_once(host: Host, recording: Recording, kind: str) -> None:
    """Another object of its class has none and counts too; when all is undone the object has what it had."""
    trainer, other = host.module.Trainer(), host.module.Trainer()
    former = trainer.roll
    trainer.roll = {
        "closed over": lambda prompts: former(prompts, 1),
        "partial": functools.partial(former),
        "bound": types.MethodType(lambda self, prompts: ["rolled", self, prompts], trainer),
        "of the class": types.MethodType(host.module.Trainer.roll, trainer),
    }[kind]
    theirs = trainer.roll
    hooking.follow(other)
    hooking.follow(trainer)
    assert ["rolled", other, 5] == other.roll(5)
    assert [("before", 5), ("after", 5)] == host.seen
    host.seen.clear()
    host.once(trainer, recording)
    assert trainer.roll is theirs


@pytest.mark.parametrize("dump", [cloudpickle.dumps, dill.dumps])
def test_a_class_of_the_program_is_pickled_without_us(
    host: Host, recording: Recording, dump: Callable[[Any], bytes]
) -> None:
    """By value, as Ray and data sets do: where it is read there may be no otel_rl."""

    class Own(host.module.Trainer):  # type: ignore[misc, name-defined]
        def roll(self, prompts: Any, scale: int = 1) -> Any:
            return ["rolled", self, prompts]

    original = Own.roll
    trainer = Own()
    hooking.follow(trainer)
    assert original is not Own.roll
    assert original.__name__ == Own.roll.__name__ == vars(Own)["roll"].__name__
    pickled = dump(Own)
    assert b"otel_rl" not in pickled
    host.once(trainer, recording)
    entry.uninstrument()
    assert vars(Own)["roll"] is original
    assert original.__code__ == pickle.loads(pickled).roll.__code__


def test_nothing_of_ours_keeps_an_object(host: Host) -> None:
    """Its attribute that is hooked does not either."""
    trainer = host.module.Trainer()
    trainer.roll = functools.partial(trainer.roll)
    hooking.follow(trainer)
    trainer.roll(1)
    ended = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert None is ended()


def test_a_class_that_is_made_anew_is_hooked(host: Host, recording: Recording) -> None:
    """It has the name of the hooked one in its module, and is not derived from it."""
    exec(SOURCE, vars(host.module))
    theirs = dict(vars(host.module.Trainer))
    host.once(host.module.Trainer(), recording)
    assert theirs == dict(vars(host.module.Trainer))


def test_a_method_that_is_put_back_counts_again(host: Host) -> None:
    """What was in its place for a while was hooked meanwhile."""
    trainer = host.module.Trainer()
    with mock.patch.object(host.module.Trainer, "roll", lambda self, prompts: prompts):
        hooking.follow(trainer)
        trainer.roll(1)
    trainer.roll(2)
    assert [("before", 1), ("after", 1), ("before", 2), ("after", 2)] == host.seen


@pytest.mark.guarded
def test_one_that_takes_other_arguments_is_told_once(
    host: Host, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    """It is called as it is; log, report and doctor name it."""

    def roll(self: Any, scale: int, prompts: Any) -> Any:
        return scale, prompts

    host.module.Trainer.roll = roll
    trainer = host.module.Trainer()
    for _ in range(3):
        hooking.follow(trainer)
    with otel_rl.step(1):
        assert (1, 2) == trainer.roll(1, 2)
    run, name = recording.stop(), f"{__name__}.{roll.__qualname__}"
    what = f"record {NAME}:Trainer.roll: {name} replaced it and takes other arguments"
    assert ([], [f"otel_rl could not {what}"]) == (host.seen, [line.partition(";")[0] for line in caplog.messages])
    assert [Loss(what="error", signal="", reason=what, count=1)] == build_report(run, 10**18).losses
    assert Check("wrong", f"errors {what}", "1") in recorded(run)
    assert host.module.Trainer.roll is roll


def test_one_that_takes_other_arguments_and_calls_ours_is_recorded_inside(host: Host) -> None:
    """By the hooked method."""
    former = host.module.Trainer.roll
    host.module.Trainer.roll = lambda self, scale, prompts: former(self, prompts)
    hooking.follow(host.module.Trainer())
    host.module.Trainer().roll(1, 2)
    assert [("before", 2), ("after", 2)] == host.seen


def test_the_first_steps_look_for_what_is_replaced(host: Host) -> None:
    """Of a module too; what is replaced after the third step is not looked for."""
    former = host.module.helper
    for number in range(1, 6):
        host.module.helper = types.FunctionType((lambda x: x).__code__, {})
        with otel_rl.step(number):
            host.module.helper(number)
    host.module.helper = lambda x, more=0: former(x)
    hooking.hook_replacements()
    host.module.helper(6)
    expected = [(what, number) for number in (1, 2, 3, 6) for what in ("before", "after")]
    assert expected == host.seen


def test_what_others_keep_of_ours_counts_once_in_the_next_recording(host: Host, recording: Recording) -> None:
    """Their method calls a replacement of the recording before."""
    closed_over(host.module.Trainer)
    recording.stop()
    recording.start()
    entry._parts.patches.install(host.hooks[0])
    host.module.Trainer().roll(3)
    assert [("before", 3), ("after", 3)] == host.seen


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (lambda self, prompts, scale=1: 0, True),
        (lambda self, prompts: 0, True),
        (lambda trainer, texts, scale=2, more=3: 0, True),
        (lambda *args, **kwargs: 0, True),
        (lambda self, *args, key=1: 0, True),
        (lambda self, prompts, *, scale: 0, True),
        (print, True),
        (lambda self: 0, False),
        (lambda self, scale, prompts: 0, False),
        (lambda self, prompts, scale, more: 0, False),
        (lambda self, prompts, *, more: 0, False),
    ],
)
def test_what_takes_the_arguments_of_another_function(other: Any, expected: bool) -> None:
    """In the same places; it may have names of its own, leave out what has a default, and add such."""
    assert expected is fits(lambda self, prompts, scale=1: 0, other)


# --- methods that are taken back --------------------------------------------------------------------------------------


def taken_back(trainer: Any) -> Any:
    """Take the hooked method, past that of the class between."""

    class Between(trainer):  # type: ignore[misc]
        def roll(self, prompts: Any, scale: int = 1) -> Any:
            return super().roll(prompts, scale)

    class Own(Between):
        roll = trainer.roll

    return Own


def mixed_in(trainer: Any) -> Any:
    """Take it in a class that is not derived from the hooked one."""

    class Mixin:
        roll = trainer.roll

    class Own(Mixin, taken_back(trainer)):  # type: ignore[misc]
        pass

    return Own


def taken_partly(trainer: Any) -> Any:
    """Take it with an argument."""

    class Own(trainer):  # type: ignore[misc]
        roll = functools.partialmethod(trainer.roll, scale=3)

    return Own


def taken_by_another_name(trainer: Any) -> Any:
    """Take it by another name, and call it by that."""

    class Own(trainer):  # type: ignore[misc]
        _theirs = trainer.roll

        def roll(self, prompts: Any) -> Any:
            return self._theirs(prompts)

    return Own


def kept(trainer: Any) -> Any:
    """Keep it outside of a class, and call that."""
    theirs = trainer.roll

    class Own(trainer):  # type: ignore[misc]
        def roll(self, prompts: Any) -> Any:
            return theirs(self, prompts)

    return Own


def taken_by_another_class(trainer: Any) -> Any:
    """Call it on an object of a class that is not derived from the hooked one."""

    class Unrelated:
        roll = trainer.roll

    class Own(trainer):  # type: ignore[misc]
        def roll(self, prompts: Any) -> Any:
            result = Unrelated().roll(prompts)
            return [result[0], self, result[2]]

    return Own


DERIVED = (taken_back, mixed_in, taken_partly, taken_by_another_name, taken_by_another_class, kept)


@pytest.mark.parametrize("derive", DERIVED, ids=lambda one: one.__name__)
def test_a_method_that_is_taken_back_counts_once(host: Host, recording: Recording, derive: Any) -> None:
    """However the class took it; when all is undone, what it took is the original."""
    own = derive(host.module.Trainer)
    host.once(own(), recording)
    trainer = own()
    assert ["rolled", trainer, 8] == trainer.roll(8)
    if derive is taken_back:
        assert vars(own)["roll"] is host.original


def test_a_class_of_its_own_that_takes_a_hooked_method_counts_once(host: Host) -> None:
    """It is not derived from the hooked one; another class overrides the method."""

    class Unrelated:
        roll = host.module.Trainer.roll

    hooking.follow(kept(host.module.Trainer)())
    Unrelated().roll(4)
    assert [("before", 4), ("after", 4)] == host.seen
