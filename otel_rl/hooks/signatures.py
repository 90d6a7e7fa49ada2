"""Whether a function that replaces another one takes its arguments, and whether it calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from types import FunctionType, MethodType
from typing import Any

from otel_rl.hooks.hook import Hook, hook_of

DEPTH = 4
"""How many functions, each referred to by the one before, are searched."""


def fits(original: Any, other: Callable[..., Any]) -> bool:
    """Return whether a function can be called as the original is, and has each argument in the same place.

    It may have names of its own, and take more that has defaults. True for functions in C, which have no signature.
    """
    try:
        mine, theirs = inspect.signature(original).parameters, inspect.signature(other).parameters
    except (TypeError, ValueError):
        return True
    names, places = _places(mine), _places(theirs)
    needed = [name for name in names if mine[name].default is inspect.Parameter.empty]
    is_open = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in theirs.values())
    is_moved = any(name in names and names.index(name) != place for place, name in enumerate(places))
    return not is_moved and (is_open or len(needed) <= len(places)) and _needed(theirs, places[: len(names)], mine)


def _places(parameters: Any) -> list[str]:
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [name for name, one in parameters.items() if one.kind in positional]


def _needed(theirs: Any, given: list[str], mine: Any) -> bool:
    """Return whether all that the other function needs is given by place, or by a name that the original has too."""
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return all(
        one.default is not inspect.Parameter.empty or one.kind in variable or name in given or name in mine
        for name, one in theirs.items()
    )


def reaches(value: Any, hook: Hook, owner: Any, depth: int = DEPTH) -> bool:
    """Return whether a function calls a replacement of a hook, as far as its references and names show."""
    if hook_of(value) is hook:
        return True
    if not depth or value is None:
        return False
    return any(hook_of(one) is hook for one in _named(value, owner)) or any(
        reaches(one, hook, owner, depth - 1) for one in _references(value)
    )


def _references(value: Any) -> Iterator[Any]:
    """Return the functions that a function refers to."""
    if isinstance(value, MethodType):
        value = value.__func__
    yield value.func if isinstance(value, (partial, partialmethod)) else getattr(value, "__wrapped__", None)
    for cell in getattr(value, "__closure__", None) or ():
        try:
            found = cell.cell_contents
        except ValueError:  # empty
            continue
        if callable(found):
            yield found


def _named(value: Any, owner: Any) -> Iterator[Any]:
    """Return what the names in a function's code mean in its module, and in the class that it is a method of."""
    function = getattr(value, "__func__", value)
    if type(function) is FunctionType:
        for name in function.__code__.co_names:
            yield inspect.getattr_static(owner, name, None)
            yield function.__globals__.get(name)


def describe(value: Any) -> str:
    """Name a function by its module and its place there."""
    function = getattr(value, "__func__", value)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"
