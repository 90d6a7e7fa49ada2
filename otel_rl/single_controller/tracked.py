"""Numbers that a framework hands to its tracker, such as Weights & Biases: recorded beside it.

Only the driver tracks, and what it tracks is of all ranks: ``rl.scope = global``. Every call makes a point of each
number. Nothing waits for the end of a step, so a run that is killed keeps what it had tracked; of a number that is
tracked again for a step both points stay, and a reader takes the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from otel_rl import vocabulary
from otel_rl.metrics.naming import Series, refuse, series_of
from otel_rl.metrics.record import as_number
from otel_rl.process.state import state
from otel_rl.records import Point
from otel_rl.trace.values import is_on_host

Label = tuple[str, str]
Numbers = Mapping[str, int | float]

GLOBAL: Label = (vocabulary.SCOPE_KEY, "global")
EVALUATION: Label = (vocabulary.MODE, "eval")


def numbers_of(values: Mapping[str, Any], system: str) -> dict[str, int | float]:
    """Return what can be recorded: no text, lists or tables, and no tensor on a device, which is said once."""
    found = {key: _number(key, value, system) for key, value in values.items()}
    return {key: number for key, number in found.items() if number is not None}


def _number(key: str, value: Any, system: str) -> int | float | None:
    if not is_on_host(value):
        refuse("on_device", f"otel_rl: %r, which {system} logs, is on a device and not recorded: reading it waits", key)
        return None
    return as_number(value)


def name_numbers(
    numbers: Numbers, prefix: str, canonical: Callable[[str], Series | None], evaluations: Collection[str]
) -> Iterator[tuple[Series, int | float]]:
    """Give each number its name and labels.

    Args:
        numbers: by the framework's names.
        prefix: of the names of what means something of the framework's own.
        canonical: returns the name and labels of ours that mean the same, or None.
        evaluations: what precedes the first slash of numbers of an evaluation.
    """
    for key, number in numbers.items():
        found = canonical(key) or series_of(key, prefix)
        if found is not None:
            name, labels = found
            yield (name, (*labels, *((EVALUATION,) if key.partition("/")[0] in evaluations else ()))), number


def lengths_at(prefix: str) -> dict[str, Series]:
    """Return the names of ours for ``<prefix>/mean``, ``/min`` and ``/max``, if these are lengths of responses."""
    extremes = extremes_at(prefix, vocabulary.RESPONSE_MAX, vocabulary.RESPONSE_MIN)
    return {f"{prefix}/mean": (vocabulary.RESPONSE_LENGTH, ()), **extremes}


def extremes_at(prefix: str, highest: str, lowest: str) -> dict[str, Series]:
    """Return the names of ours for ``<prefix>/max`` and ``/min``."""
    return {f"{prefix}/max": (highest, ()), f"{prefix}/min": (lowest, ())}


def record_numbers(named: Iterable[tuple[Series, int | float]]) -> None:
    """Record numbers under their names and labels, stamped now; NaN and infinity are kept."""
    time_ns = state.now()
    for (name, labels), number in named:
        state.add(Point(name, number, time_ns, (*labels, GLOBAL)))
