"""Methods that a program or another library puts in the place of hooked ones: they are hooked as those were."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakSet, ref

from otel_rl.guard import guard, report
from otel_rl.hooks.decorated import looks_at_frames
from otel_rl.hooks.hook import Hook, can_be_covered, cover, hook_of, replacements, wrap
from otel_rl.hooks.install import Patch, Patches, find
from otel_rl.hooks.signatures import describe, fits, reaches
from otel_rl.trace.importlib_bootstrap import not_counted

STATIC = staticmethod, classmethod


class Overrides:
    """Hooks what stands in the place of hooked functions: overrides of a class, and what others have put there."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._followed: list[ref[Any]] = []
        self._on_objects: WeakSet[Any] = WeakSet()
        """Replacements that objects have as attributes of their own."""
        self._reported: set[str] = set()
        patches.at_undo(self._restore)

    def follow(self, trainer: object) -> None:
        """Hook what an object and its class have in place of hooked methods, now and at each ``hook_replacements``.

        The stage holds what replaces the method, whether that calls the hooked method or not: only what the object
        finds first is recorded of a call.

        Args:
            trainer: most often of a class of the program that is derived from the framework's.
        """
        with guard(f"follow {type(trainer).__qualname__}"), self._patches.lock:
            others = [one for one in self._followed if one() is not None and one() is not trainer]
            self._followed = [*others, ref(trainer)]
        self.hook_replacements()

    def hook_replacements(self) -> None:
        """Hook what another library has put in the place of hooked functions, where it takes the same arguments.

        Cost: 0.6 ms. A replacement that takes others is reported once, as an error.
        """
        with guard("find replaced functions"), self._patches.lock:
            self._hook_new_classes()
            last = {(id(patch.owner), patch.name): patch for patch in self._patches.applied}
            for patch in last.values():
                value = inspect.getattr_static(patch.owner, patch.name, None)
                if value is not None and value is not patch.replacement and hook_of(value) is None:
                    self._renew(patch, patch.owner, value)
            for one in self._followed:
                trainer = one()
                if trainer is not None:
                    self._hook_overrides(type(trainer))
                    self._hook_attributes(trainer)

    def _hook_new_classes(self) -> None:
        """Hook classes that were made anew: another class has the name, and is not derived from the hooked one."""
        owners: dict[int, tuple[Patch, list[Any]]] = {}
        for patch in self._patches.applied:
            owners.setdefault(id(patch.hook), (patch, []))[1].append(patch.owner)
        for patch, known in owners.values():
            is_loaded = patch.hook.target.partition(":")[0] in sys.modules
            found = find(patch.hook.target) if is_loaded else None
            if found is None or any(found[0] is owner for owner in known):
                continue
            owner, name = found
            is_derived = inspect.isclass(owner) and any(
                inspect.isclass(one) and issubclass(owner, one) for one in known
            )
            value = inspect.getattr_static(owner, name, None)
            if value is not None and not is_derived and hook_of(value) is None:
                self._renew(patch, owner, value)

    def _hook_overrides(self, kind: type) -> None:
        """Hook what a class, or a base of it, overrides of hooked methods."""
        for name, patch in self._nearest(kind).items():
            definer = next(owner for owner in kind.__mro__ if name in vars(owner))
            if any(one.owner is definer and one.name == name for one in self._patches.applied):
                continue
            value = vars(definer)[name]
            patched = next((one for one in self._patches.applied if one.replacement is value), None)
            if patched is not None and (patched.hook is patch.hook or patched.hook.like(patch.hook)):
                # It is hooked, and has the original again when all is undone.
                self._patches.put(Patch(patched.hook, definer, name, patched.original, value, inherited=False))
            elif not isinstance(patch.original, STATIC):
                function = _as_method(definer, name, value)
                if function is not None:
                    self._put(patch, definer, value, function)

    def _hook_attributes(self, trainer: Any) -> None:
        """Hook what an object has of its own in place of hooked methods of its class."""
        own = vars(trainer)
        for name, patch in self._nearest(type(trainer)).items():
            value = own.get(name)
            if not callable(value) or hook_of(value) is not None or isinstance(patch.original, STATIC):
                continue
            if looks_at_frames(value):
                self._report(patch.hook, value, "looks at its caller's frame")
            elif fits(getattr(type(trainer), name).__get__(trainer), value):
                own[name] = self._bound(patch.hook, trainer, value)
                self._cover(patch.hook, name)
            elif not reaches(value, patch.hook, type(trainer)):
                self._report(patch.hook, value)

    def _nearest(self, kind: type) -> dict[str, Patch]:
        """Return the replaced methods that objects of a class have, by name: each of the nearest class that has it."""
        places = {owner: place for place, owner in enumerate(kind.__mro__)}
        methods = [patch for patch in self._patches.applied if inspect.isclass(patch.owner) and patch.owner in places]
        further_first = sorted(methods, key=lambda patch: -places[patch.owner])  # stable: the last replacement counts
        return {patch.name: patch for patch in further_first if not _is_special(patch.name)}

    def _renew(self, patch: Patch, owner: Any, value: Any) -> None:
        """Hook what stands in the place of a replacement, unless it takes other arguments."""
        function = _as_method(owner, patch.name, value) if inspect.isclass(owner) else value
        if isinstance(patch.original, STATIC):
            function = value if type(value) is type(patch.original) else None
        is_fit = callable(function) and fits(patch.original, function)
        is_coverable = inspect.isclass(owner) and can_be_covered(_function(patch.replacement))
        counts_once = is_coverable and not _is_special(patch.name)
        if not (is_fit and counts_once) and reaches(value, patch.hook, owner):
            return  # the hooked function still runs, inside of it
        if is_fit:
            self._put(patch, owner, value, function)
        else:
            self._report(patch.hook, value)

    def _put(self, replaced: Patch, owner: Any, value: Any, function: Any) -> None:
        hook, name = replaced.hook, replaced.name
        is_inherited = name not in vars(owner)
        replacement = wrap(hook, function, replaced.original)
        if _is_pickled_by_value(owner) and hook_of(replacement) is hook and type(replacement) is FunctionType:
            replacement = PickledAsOriginal(replacement, value)
        self._patches.put(Patch(hook, owner, name, value, replacement, is_inherited))
        if inspect.isclass(owner) and not _is_special(name):
            self._cover(hook, name)

    def _cover(self, hook: Hook, name: str) -> None:
        for patch in self._patches.applied:
            if patch.hook is hook and inspect.isclass(patch.owner):
                cover(_function(patch.replacement), name)

    @not_counted
    def _bound(self, hook: Hook, trainer: Any, value: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of an attribute of an object; nothing of ours keeps the object alive."""
        hooked = wrap(hook, functools.wraps(value)(lambda trainer, *args, **kwargs: value(*args, **kwargs)))

        @functools.wraps(value)
        def bound(*args: Any, **kwargs: Any) -> Any:
            return hooked(trainer, *args, **kwargs)

        replacements[bound] = hook
        self._on_objects.add(bound)
        return bound

    def _restore(self) -> None:
        """Restore the attributes of objects; what others keep of ours counts once in the next recording."""
        for trainer in filter(None, (one() for one in self._followed)):
            for name, value in vars(trainer).items():
                if type(value) is FunctionType and value in self._on_objects:
                    vars(trainer)[name] = value.__wrapped__  # type: ignore[attr-defined]
        for patch in self._patches.applied:
            if inspect.isclass(patch.owner) and not _is_special(patch.name):
                cover(_function(patch.replacement), patch.name)

    def _report(self, hook: Hook, value: Any, why: str = "takes other arguments") -> None:
        """Count, and log once, that nothing can be recorded of a function."""
        what = f"record {hook.target}: {describe(value)} replaced it and {why}"
        if what not in self._reported:
            self._reported.add(what)
            report(what, None)


class PickledAsOriginal:
    """A replacement in a class that cloudpickle and dill write by value: they write what it replaces.

    On an object it is the method that it would be without this. Cost: 0.1 us a call.
    """

    def __init__(self, replacement: FunctionType, original: Any) -> None:
        functools.update_wrapper(self, replacement)  # type: ignore[arg-type]
        self.__wrapped__ = original
        self.__func__ = replacement

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.__func__.__get__(instance, owner)

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.__wrapped__,)  # of a function it is the function: where this is read we may be missing


def _function(replacement: Any) -> Any:
    return replacement.__func__ if type(replacement) is PickledAsOriginal else replacement


def _is_pickled_by_value(owner: Any) -> bool:
    return inspect.isclass(owner) and (owner.__module__ == "__main__" or "<locals>" in owner.__qualname__)


def _is_special(name: str) -> bool:
    """Return whether a method is like ``__init__``: each class has its own, and calls that of the next."""
    return name.startswith("__")


@not_counted
def _as_method(owner: type, name: str, value: Any) -> Callable[..., Any] | None:
    """Return a function that, as a method, does what calling a class's attribute on an object does."""
    if type(value) is FunctionType:
        return value
    if not callable(value) and not isinstance(value, functools.partialmethod):
        return None
    if not hasattr(type(value), "__get__"):
        return lambda self, *args, **kwargs: value(*args, **kwargs)

    @functools.wraps(getattr(owner, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return value.__get__(self, type(self))(*args, **kwargs)

    return method
