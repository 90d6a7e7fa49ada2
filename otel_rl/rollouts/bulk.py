"""Chooses the arithmetic: numpy's for many requests where the program has loaded it, plain Python otherwise."""

from __future__ import annotations

import sys
from time import monotonic_ns
from types import ModuleType
from typing import Final

from otel_rl.rollouts import bulk_plain
from otel_rl.rollouts.columns import Derived, Table
from otel_rl.runtime import state

FEW: Final = 48
"""Below this numpy's calls cost more than what they save."""


def bulk(count: int) -> ModuleType:
    """Give the module that computes on so many requests at once.

    numpy is never imported for this: it would start its own threads in a program that has none.
    """
    numpy = sys.modules.get("numpy")
    if count < FEW or not hasattr(numpy, "bincount"):
        return bulk_plain
    from otel_rl.rollouts import bulk_numpy

    return bulk_numpy


def derive(table: Table) -> tuple[ModuleType, Derived]:
    """Derive what follows from each request now; says which module did."""
    module = bulk(len(table.rows))
    try:
        return module, module.derive(table, state.first_ns, monotonic_ns())
    except OverflowError:  # a number beyond 64 bits
        return bulk_plain, bulk_plain.derive(table, state.first_ns, monotonic_ns())
