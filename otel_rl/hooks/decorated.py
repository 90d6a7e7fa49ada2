"""Decorators in front of which no frame of ours may stand: we record inside of them.

A decorator may decide by its caller's frame, such as whether the caller is a coroutine that will await the result. Our
replacement would be that caller. So the decorator stays in front, as a copy that calls our replacement of the function
inside. The same holds for a decorator that is no coroutine function, around one that is: its call ends too early.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, Final

FRAMES: Final = frozenset({"_getframe", "_getframemodulename", "currentframe"})
"""Functions of ``sys`` and ``inspect`` by which code gets at frames."""


def looks_at_frames(function: Any) -> bool:
    """Return whether the code of a function itself looks at frames, and so maybe at its caller's."""
    code = getattr(function, "__code__", None)
    return isinstance(code, CodeType) and not FRAMES.isdisjoint(code.co_names)


def inside(function: Any) -> Any:
    """Return the function inside a decorator in front of which no frame may stand; None for any other function."""
    inner = getattr(function, "__wrapped__", None)
    is_early = inspect.iscoroutinefunction(inner) and not inspect.iscoroutinefunction(function)
    if type(function) is not FunctionType or inner is None or not (is_early or looks_at_frames(function)):
        return None
    return inner if any(_holds(cell, inner) for cell in function.__closure__ or ()) else None


def with_inside(function: FunctionType, inner: Any, replacement: Any) -> Callable[..., Any]:
    """Return a copy of a decorator that calls a replacement of the function inside it."""
    cells = tuple(CellType(replacement) if _holds(cell, inner) else cell for cell in function.__closure__ or ())
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copy, function)
    copy.__wrapped__ = replacement  # type: ignore[attr-defined]
    return copy


def _holds(cell: CellType, inner: Any) -> bool:
    try:
        return cell.cell_contents is inner
    except ValueError:  # empty
        return False
