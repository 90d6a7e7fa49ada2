"""Where requests belong: below a stage of ours, or below a span of somebody else."""

from __future__ import annotations

from typing import Any, NamedTuple

from opentelemetry.trace import SpanContext

from otel_rl import vocabulary as v
from otel_rl.guard import guard
from otel_rl.records import Labels
from otel_rl.requests import Request
from otel_rl.runtime import Trace
from otel_rl.spans import Stage


class Place(NamedTuple):
    """A span of somebody else."""

    trace_id: int
    span_id: int
    sampled: bool


class Bucket:
    """Requests that wait to be counted together: of one rollout, and with the same thing wrong with them."""

    __slots__ = ("key", "mode", "problem", "rows", "trace", "turns")

    def __init__(self, key: Any, trace: Trace | None, mode: Labels = (), problem: str = "") -> None:
        self.key = key
        self.trace = trace
        self.mode = mode
        self.problem = problem
        """``late`` or ``forked``, where all of them are."""
        self.rows: list[Request] = []
        self.turns: list[tuple[int, int]] = []
        """From which row on they belong to the span of which id."""

    def parents(self) -> list[int]:
        """Give the id of the span of each row."""
        found: list[int] = []
        ends = [first for first, _ in self.turns[1:]]
        for (first, span_id), end in zip(self.turns, [*ends, len(self.rows)], strict=True):
            found += [span_id] * (end - first)
        return found


def place_of(parent: Any) -> Stage | Place | None:
    """Say what a parent is: a stage of ours, a span of somebody else, or nothing."""
    if isinstance(parent, Stage):
        return parent if parent.trace is not None else None
    with guard("find the parent of a request"):
        context = parent if isinstance(parent, SpanContext) or parent is None else parent.get_span_context()
        if context is not None and context.is_valid:
            return Place(context.trace_id, context.span_id, context.trace_flags.sampled)
    return None


def is_evaluation(parent: Any) -> bool:
    """Whether requests belong to an evaluation, which counts apart from training."""
    if not isinstance(parent, Stage):
        return False
    return parent.name == v.EVALUATE or (parent.attributes or {}).get(v.MODE) == "eval"
