"""The arguments of a call in one form, whether its caller hands them over by position or by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Bind = Callable[[Args, Kwargs], tuple[Args, Kwargs]]


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters in their order, without ``*args`` and ``**kwargs``.

    A function of C has no names. Annotations are not evaluated, which may fail.
    """
    code = _code(function)
    return [] if code is None else list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def binder(function: Any, base: Any = None, *, by_name: bool = False) -> Bind | None:
    """Return a function that brings arguments into one form; None for a function without named parameters.

    ``args`` then holds every argument that has a position; if the call has keywords, also the defaults of those that
    were left out. ``kwargs`` is what was given by keyword. A call without keywords has this form already. Any other
    costs 0.3 us (``benchmarks/hotpath.py``).

    Args:
        function: what is called.
        base: the method that ``function`` overrides: its names count after those of an override that takes any.
        by_name: also put every argument that was given and has a name into ``kwargs``.
    """
    names, defaults = _positional(function, base)
    if not names:
        return None
    spread: Callable[..., Args] | None = None

    def bind(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        nonlocal spread
        named = {**dict(zip(names, args, strict=False)), **kwargs} if by_name else kwargs
        if kwargs:
            if spread is None:  # most hooks never see a keyword
                spread = _spread(names, defaults)
            try:
                return spread(*args, **kwargs), named
            except TypeError:  # the function itself will raise it, too
                return args, named
        return args, named

    return bind


def _spread(names: Args, defaults: Args) -> Callable[..., Args]:
    """Make a function of these parameters that returns them: so CPython itself binds them, four times as fast."""
    listed = ", ".join(names)
    spread: Any = eval(f"lambda {listed}, *_rest, **_more: ({listed}, *_rest)", {})
    spread.__defaults__ = defaults
    return spread  # type: ignore[no-any-return]


def _positional(function: Any, base: Any = None) -> tuple[Args, Args]:
    """Return the names of the parameters that have a position, and the defaults of the last of them."""
    code = _code(function)
    if code is None:
        return (), ()
    names = code.co_varnames[: code.co_argcount]
    if base is not None and code.co_flags & inspect.CO_VARKEYWORDS:
        all_names, defaults = _positional(base)
        further = all_names[len(names) :]
        if further and not set(further) & set(names):
            return names + further, defaults
    return names, inspect.unwrap(function).__defaults__ or ()


def _code(function: Any) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None
