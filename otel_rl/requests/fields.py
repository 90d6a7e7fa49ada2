"""What the fields of a request should be, and what is made of those that are something else."""

from __future__ import annotations

from collections import Counter
from operator import index
from typing import Any, Final, NamedTuple

from otel_rl.guard import attempt
from otel_rl.requests.queue import UNKNOWN, Request, Values

FAILED: Final = frozenset(("abort", "timeout", "error"))
"""Finish reasons of requests that all become spans, within their limit."""
SLACK_NS: Final = 1_000_000
"""A submission may be stamped by another clock than the engine's: up to this it counts as no time, not as a mistake."""
LARGEST: Final = 1 << 62

TIMES: Final = ("submitted", "ended", "scheduled", "first_token", "last_token")
COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "preemptions")
WHOLE: Final = (*TIMES, *COUNTS, "turn", "policy_start", "policy_end", "limit")
TYPES: Final = tuple(int if name in WHOLE else bool if name == "streamed" else str for name in Request._fields)


def indices(*names: str) -> tuple[int, ...]:
    """Return where these fields are in a request."""
    return tuple(map(Request._fields.index, names))


KIND: Final = indices("operation", "engine", "model", "replica", "streamed")
"""What distinguishes the series of requests."""
FINISH, ERROR, ID = indices("finish", "error", "id")


class RequestNumbers(NamedTuple):
    """What follows from one request; times in ns, -1 where a number is not known or not usable."""

    duration: int
    ttft: int
    queue: int
    prefill: int
    decode: int
    tpot: int
    input: int
    output: int
    cached: int
    preemptions: int
    started: int
    """When the engine took the request up (monotonic, ns); 0 where unknown."""
    ended: int
    """Monotonic, ns; 0 where unknown."""


def cleaned(values: Values, problems: Counter[str] | None = None) -> Request:
    """Return a request whose fields have the types that they should have; a value that cannot be read is not known.

    Args:
        values: what a reader gave.
        problems: counts ``not_a_number``; left out where the values are known to be as good as clean.
    """
    if tuple(map(type, values)) == TYPES:  # nothing is compared but types: what is odd may refuse that
        return Request._make(values)
    changed: dict[str, Any] = {}
    is_wrong = False
    for name, kind, value in zip(Request._fields, TYPES, values, strict=True):
        if type(value) is kind:
            continue
        read: Any = whole if kind is int else _text if kind is str else kind
        found = None if value is None else attempt("read", "a value of a request", read, value)
        is_wrong |= found is None and value is not None
        changed[name] = (0 if name in TIMES else UNKNOWN if kind is int else kind()) if found is None else found
    if problems is not None:
        problems["not_a_number"] += is_wrong
    return Request._make(values)._replace(**changed)


def _text(value: Any) -> str:
    return str.__str__(value if isinstance(value, str) else str(value))


def whole(value: Any) -> int | None:
    """Read a whole number of any type; None where it is none."""
    try:
        number = index(value)
    except TypeError:
        if not isinstance(value, float) or not value.is_integer():
            return None
        number = int(value)
    return int(number) if abs(number) < LARGEST else None


def is_failed(values: Values) -> bool:
    """Return whether a request was aborted, ran out of time or failed."""
    return values[FINISH] in FAILED or bool(values[ERROR])


def has_error(values: Values) -> bool:
    """Return whether a request failed by itself."""
    return values[FINISH] == "error" or bool(values[ERROR])
