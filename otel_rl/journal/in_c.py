"""The parts of the package that are written in C, where they could be built."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def find_native(name: str, form: int) -> ModuleType | None:
    """Import a module in C; None if it was not built, or if its interface is of another version."""
    try:
        module = import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "FORM", 0) == form else None
