"""What was compiled when otel_rl was installed, where there was a compiler."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def find_native(name: str, form: int) -> ModuleType | None:
    """Give a module in C; None where it was not built, or where what was built is of another version.

    Args:
        name: of the module.
        form: of what it takes and gives; it says so too, as ``FORM``.
    """
    try:
        module = import_module(name)
    except ImportError:
        return None
    return module if getattr(module, "FORM", 0) == form else None
