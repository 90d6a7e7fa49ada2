"""Methods that a program overrides in classes of its own: they are hooked as what they override."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any
from weakref import WeakSet

from otel_rl.guard import guard
from otel_rl.importlib_bootstrap import not_counted
from otel_rl.patching import Patch, Patches
from otel_rl.wrapping import wrap


class Overrides:
    """Hooks what classes override of the methods that are replaced."""

    def __init__(self, patches: Patches) -> None:
        """Begin without any class.

        Args:
            patches: the replaced methods; it gets the replacements of overrides, and undoes them.
        """
        self._patches = patches
        self._followed: WeakSet[type] = WeakSet()
        """Classes whose overrides are hooked."""

    def follow(self, kind: type) -> None:
        """Hook what a class, or one between, overrides of the hooked methods of those that it is derived from.

        The stage of such a method is then around the override, which may call the method or replace it. Of one call,
        only the method that the object's own class finds first is hooked.

        Args:
            kind: most often of the program: a trainer derived from the framework's.
        """
        with guard(f"follow {kind.__qualname__}"), self._patches.lock:
            if kind in self._followed:
                return
            self._followed.add(kind)
            for name, patch in self._nearest(kind).items():
                definer = _definer(kind, name)
                if definer is None or definer is patch.owner:
                    continue
                override = vars(definer)[name]
                if isinstance(override, FunctionType):
                    if not patch.outermost:
                        self._put_outermost(patch, patch.owner, patch.replacement, patch.original)
                    self._put_outermost(patch, definer, wrap(patch.hook, override, patch.original), override)

    def _nearest(self, kind: type) -> dict[str, Patch]:
        """Find the replaced methods that objects of a class have, of each name that of the nearest class."""
        places = {owner: place for place, owner in enumerate(kind.__mro__)}
        methods = [patch for patch in self._patches.applied if inspect.isclass(patch.owner) and patch.owner in places]
        further_first = sorted(methods, key=lambda patch: -places[patch.owner])  # stable: the last replacement counts
        return {patch.name: patch for patch in further_first if not patch.name.startswith("__")}

    def _put_outermost(self, patch: Patch, owner: type, hooked: Any, original: Any) -> None:
        """Hook a method for the objects whose class finds it first; for the others it is as it was."""
        before, replacement = vars(owner)[patch.name], _outermost(owner, patch.name, hooked, original)
        self._patches.put(Patch(patch.hook, owner, patch.name, before, replacement, inherited=False, outermost=True))


def _definer(kind: type, name: str) -> type | None:
    """Find the class whose method an object of a class has."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


@not_counted
def _outermost(owner: type, name: str, hooked: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (hooked if _definer(type(self), name) is owner else original)(self, *args, **kwargs)

    return method
