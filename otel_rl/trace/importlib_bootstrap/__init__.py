"""Keeps frames of ours out of what ``warnings`` and ``logging`` count as callers.

A function that warns with ``stacklevel=2`` means its caller. A function that we replaced has one more frame above it:
ours. ``warnings`` (in C and in Python) and, since Python 3.11, ``logging`` do not count frames of files whose name
contains both ``importlib`` and ``_bootstrap``. So does the code here: it gives the code of our replacements a name of
their own file that leads through this folder, which has its name for that reason. Tracebacks, debuggers and coverage
find the file by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

T = TypeVar("T", bound="Callable[..., Any]")
HERE = os.path.dirname(os.path.abspath(__file__))


def not_counted(target: T) -> T:
    """Decorate a function, or all methods of a class: their frames, and those of functions inside, are no callers."""
    functions = vars(target).values() if isinstance(target, type) else (target,)
    for function in functions:
        if isinstance(function, FunctionType):
            function.__code__ = _renamed(function.__code__)
    return target


def _renamed(code: CodeType) -> CodeType:
    inner = tuple(_renamed(const) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_filename=os.path.join(HERE, os.path.relpath(code.co_filename, HERE)), co_consts=inner)
