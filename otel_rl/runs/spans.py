"""From journaled spans to what the analysis computes with: labels, and numbers from attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.journal.views import SpanView
from otel_rl.records import Value

NAMELESS: Final = "unnamed"
"""The label of a stage whose name is blank."""
QUALIFIERS: Final = {v.LOGPROB: v.LOGPROB_KIND, v.IDLE: v.IDLE_REASON}
SKEW: Final = "skew"
"""The reason of a wait for slower peers, which only a reader of several ranks knows."""
UNKNOWN: Final = -1
"""The coordinate of a rank that does not say it."""
LONGEST_S: Final = 1e9
"""What says that it took longer, 30 years, is no time; the sum of a few would need more than 64 bits."""
NOT_TOLD: Final = -2
"""The data-parallel group of a rank that shares its samples and does not say with which ranks."""


def shares_samples(resource: Mapping[str, Value]) -> int:
    """Return the data-parallel group whose samples a rank shares, NOT_TOLD, or UNKNOWN if it may have its own.

    Each rank of a data-parallel group has its own unless tensor, pipeline or context parallelism lies across it.
    """
    if all(place(resource, key) == UNKNOWN for key in (v.RANK_TP, v.RANK_PP, v.RANK_CP)):
        return UNKNOWN
    group = place(resource, v.RANK_DP)
    return NOT_TOLD if group == UNKNOWN else group


def place(resource: Mapping[str, Value], key: str) -> int:
    """Return a rank's coordinate along one axis of the parallel layout.

    Ranks of one role that share the pipeline stage are peers; if one of them does not say its stage, all are.
    """
    value = resource.get(key)
    return value if isinstance(value, int) and value >= 0 else UNKNOWN


def integer(attributes: Mapping[str, Value], key: str) -> int:
    value = attributes.get(key)
    return int(value) if isinstance(value, int) else 0


def number(attributes: Mapping[str, Value], key: str) -> float | None:
    value = attributes.get(key)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def text(attributes: Mapping[str, Value], key: str) -> str:
    value = attributes.get(key)
    return "" if value is None else str(value)


def iteration_of(attributes: Mapping[str, Value]) -> int | None:
    value = attributes.get(v.ITERATION)
    return value if isinstance(value, int) else None


def label(name: str, attributes: Mapping[str, Value]) -> str:
    """Name a stage with what distinguishes it: `rl.logprob ref`, `rl.idle data`, `rl.checkpoint load`."""
    if not name.strip():
        return NAMELESS
    if name == v.CHECKPOINT and attributes.get(v.CHECKPOINT_LOAD) is True:
        return f"{name} load"
    key = QUALIFIERS.get(name)
    qualifier = text(attributes, key) if key else ""
    return f"{name} {qualifier}" if qualifier else name


def call_of(name: str, attributes: Mapping[str, Value]) -> str:
    """Return the label of the calls that a call is compared with: containers of steps are not as those of set-up."""
    is_phase = is_container(name) and iteration_of(attributes) is None
    return f"{v.SETUP} {name}" if is_phase else label(name, attributes)


def is_container(name: str) -> bool:
    return name.startswith(v.CONTAINER)


def is_request(span: SpanView) -> bool:
    """Return whether a span is a rollout request: a few of many, and no stage."""
    return v.SUBMISSION in span.attributes


def is_derived(span: SpanView) -> bool:
    """Return whether the sidecar made the span from several ranks' collectives."""
    return span.name == v.IDLE and span.attributes.get(v.IDLE_REASON) == SKEW


def own_stages(spans: Sequence[SpanView]) -> Sequence[SpanView]:
    """Leave out spans of other libraries in one trace; a span inside one gets the nearest stage as its parent."""
    parents = {span.span_id: span.parent_id for span in spans if not span.is_own}
    if not parents:  # as in most steps
        return spans
    kept = [span for span in spans if span.is_own]
    for index, span in enumerate(kept):
        parent, left = span.parent_id, len(parents)
        while parent in parents and left:  # a damaged trace may be a circle
            parent, left = parents[parent], left - 1
        if parent != span.parent_id:
            kept[index] = span._replace(parent_id=parent)
    return kept


def nanoseconds(time_s: Value | None) -> int | None:
    return round(time_s * 1e9) if isinstance(time_s, int | float) and 0 <= time_s < LONGEST_S else None
