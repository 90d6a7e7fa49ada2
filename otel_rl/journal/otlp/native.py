"""Modules in C, which the installation compiles if there is a compiler."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def find_native(name: str, form: int) -> ModuleType | None:
    """Import a module in C; None if it was not built, or if its interface (``FORM``) is of another version."""
    try:
        module = import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "FORM", 0) == form else None
