"""The arguments of a call in one form, whether its caller hands them over by position or by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Bind = Callable[[Args, Kwargs], tuple[Args, Kwargs]]

_REQUIRED = inspect.Parameter.empty


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters in their order, ``*args`` and ``**kwargs`` left out.

    A function of C has no names. Annotations are not evaluated, which may fail.
    """
    code = _code(function)
    return [] if code is None else list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def binder(function: Any, base: Any = None, *, by_name: bool = False) -> Bind | None:
    """Return what brings arguments into one form; None for a function without named parameters.

    In the result, ``args`` holds every argument that has a position, with defaults where the caller left one out before
    another that he gave. ``kwargs`` is what was given by keyword. A call without keywords has this form already.

    Args:
        function: what is called.
        base: the method that ``function`` overrides: its names count behind those of an override that takes any.
        by_name: also put every argument that has a name into ``kwargs``.
    """
    known = _positional(function)
    code = _code(function)
    if base is not None and code is not None and code.co_flags & inspect.CO_VARKEYWORDS:
        known += _positional(base)[len(known) :]
    if not known:
        return None
    names = [name for name, _ in known]

    def bind(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        if kwargs:
            values, left, end = list(args), len(kwargs), len(args)
            for name, default in known[end:]:
                if name in kwargs:
                    values.append(kwargs[name])
                    left, end = left - 1, len(values)
                    if not left:
                        break
                elif default is _REQUIRED:
                    break
                else:
                    values.append(default)
            args = tuple(values[:end])
        return args, {**dict(zip(names, args, strict=False)), **kwargs} if by_name else kwargs

    return bind


def _positional(function: Any) -> list[tuple[str, Any]]:
    """Return the parameters that have a position, with their defaults."""
    code = _code(function)
    if code is None:
        return []
    names = code.co_varnames[: code.co_argcount]
    defaults = inspect.unwrap(function).__defaults__ or ()
    return list(zip(names, (*[_REQUIRED] * (len(names) - len(defaults)), *defaults), strict=True))


def _code(function: Any) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None
