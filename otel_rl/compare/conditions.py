"""What a user does not accept: conditions such as `step_time > 5%`, for a pipeline that has to fail."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_rl.compare.busy import TIMES
from otel_rl.compare.data import ComparedNumber, Comparison, Condition
from otel_rl.compare.show_numbers import write_difference

FORM: Final = re.compile(r"\s*(.+?)\s*([<>])\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(%|[A-Za-z]*)\s*")
UNITS: Final = {
    "": ("", 1.0), "%": ("%", 0.01), "us": ("s", 1e-6), "ms": ("s", 1e-3), "s": ("s", 1.0), "min": ("s", 60.0),
    "B": ("By", 1.0), "KiB": ("By", 2.0**10), "MiB": ("By", 2.0**20), "GiB": ("By", 2.0**30),
}  # fmt: skip
"""By the unit of a bound: the unit of numbers that it fits, and what it stands for."""
EXAMPLE: Final = '"step_time > 5%" or "memory.host_rss > 500 MiB"'


class ConditionError(ValueError):
    """A condition that cannot be understood."""


@dataclass(frozen=True, slots=True)
class ChangeBound:
    """A bound for the change of a number."""

    text: str
    name: str
    is_above: bool
    value: float
    unit: str
    """`%` for a share of the first run's level; empty for the number's own."""


def parse(text: str) -> ChangeBound:
    """Read a condition.

    Raises:
        ConditionError: it has another form.
    """
    found = FORM.fullmatch(text)
    if found is None:
        raise ConditionError(f"{text!r} is no condition; write {EXAMPLE}")
    name, sign, number, unit = found.groups()
    if unit not in UNITS:
        raise ConditionError(f"{text!r}: unknown unit {unit!r}; known are {', '.join(filter(None, UNITS))}")
    try:
        value = float(number)
    except ValueError:
        raise ConditionError(f"{text!r}: {number!r} is no number") from None
    return ChangeBound(text, name, sign == ">", value * UNITS[unit][1], UNITS[unit][0])


def judge(bounds: Sequence[ChangeBound], comparison: Comparison) -> list[Condition]:
    """Return which conditions hold.

    Raises:
        ConditionError: a run has no such number, or another unit.
    """
    known = {one.name: one for one in comparison.numbers}
    left = {bound.name: "the runs have no number in common" for bound in bounds if not comparison.has_common_numbers}
    left |= {name: one.reason for one in comparison.not_compared for name in one.names}
    return [
        _judge(bound, known[bound.name], comparison.busy) if bound.name in known else _left(bound, [*known], left)
        for bound in bounds
    ]


def _left(bound: ChangeBound, known: Sequence[str], left: dict[str, str]) -> Condition:
    if bound.name in left:
        return Condition(text=bound.text, name=bound.name, holds=None, reason=f"not compared: {left[bound.name]}")
    near = difflib.get_close_matches(bound.name, [*known, *left], 1)
    near = near or [name for name in known if name.endswith(f".{bound.name}")][:1]
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}" if known else ""
    raise ConditionError(f"{bound.text!r}: neither run has a number {bound.name}{hint}")


def _judge(bound: ChangeBound, number: ComparedNumber, busy: str) -> Condition:
    def result(holds: bool | None, reason: str) -> Condition:
        return Condition(text=bound.text, name=bound.name, holds=holds, reason=reason)

    if bound.unit not in ("", "%", number.unit):
        raise ConditionError(f"{bound.text!r}: {number.name} has the unit {number.unit or '1'}")
    change = number.relative if bound.unit == "%" else number.difference
    if change is None:
        return result(None, "it is 0 in the first run: give a bound without %" if number.a == 0 else "it has no value")
    said = write_difference(number)
    if not has_scatter(number):
        return result(_exceeds(change, bound), said)
    if number.low is None or number.high is None:
        return result(None, f"{said}, and too few steps to tell it from noise: {number.steps}")
    is_beyond = _exceeds(change, bound)
    if busy and number.group in TIMES and (is_beyond or _is_hidden(number, bound, busy)):
        return result(None, f"{said}: the machine of run {busy.upper()} was busy otherwise")
    if not is_beyond:
        return result(False, said)
    is_sure = number.low > 0 or number.high < 0
    return result(is_sure, said if is_sure else f"{said}: within noise")


def _is_hidden(number: ComparedNumber, bound: ChangeBound, busy: str) -> bool:
    """Return whether the change would be nearer to the bound had the machine not been busy."""
    return (bound.is_above == (number.worse == "more")) == (busy == "a")


def has_scatter(number: ComparedNumber) -> bool:
    return number.group not in ("memory", "trouble")


def _exceeds(change: float, bound: ChangeBound) -> bool:
    return change > bound.value if bound.is_above else change < bound.value
