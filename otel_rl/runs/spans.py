"""From journaled spans to what the arithmetic takes: labels, numbers out of attributes, pieces of a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.goodput import is_background
from otel_rl.analysis.stages import Comm, RankSpan
from otel_rl.journal.views import SpanView
from otel_rl.records import Value

NAMELESS: Final = "unnamed"
"""What a stage is called whose name is blank."""
SKEW: Final = "skew"
"""The reason of a wait for slower peers, which only who reads several ranks can know."""
UNKNOWN: Final = -1
"""The place of a rank that did not say it."""
NOT_TOLD: Final = -2
"""Instead of the data-parallel group, of a rank that shares its samples and does not say with whom."""


def shares_samples(resource: Mapping[str, Value]) -> int:
    """Say with whom a rank shares its samples: the data-parallel group, NOT_TOLD, or UNKNOWN where it may have its own.

    Each rank of a data-parallel group has its own unless tensor, pipeline or context lie across it.
    """
    if all(place(resource, key) == UNKNOWN for key in (v.RANK_TP, v.RANK_PP, v.RANK_CP)):
        return UNKNOWN
    group = place(resource, v.RANK_DP)
    return NOT_TOLD if group == UNKNOWN else group


def pipeline_of(resource: Mapping[str, Value]) -> int:
    """Read a rank's pipeline stage: ranks of one role that share it do the same work: peers.

    Where one rank of a role and attempt does not say it, all ranks of the role are peers.
    """
    return place(resource, v.RANK_PP)


def place(resource: Mapping[str, Value], key: str) -> int:
    """Read a rank's place along one axis of the parallel layout."""
    value = resource.get(key)
    return value if isinstance(value, int) and value >= 0 else UNKNOWN


def integer(attributes: Mapping[str, Value], key: str) -> int:
    """Read a whole number; 0 where it is absent or something else."""
    value = attributes.get(key)
    return int(value) if isinstance(value, int) else 0


def text(attributes: Mapping[str, Value], key: str) -> str:
    """Read a text; empty where it is absent."""
    value = attributes.get(key)
    return "" if value is None else str(value)


def iteration_of(attributes: Mapping[str, Value]) -> int | None:
    """Read the number of the step; None where the span is no part of one."""
    value = attributes.get(v.ITERATION)
    return value if isinstance(value, int) else None


def label(name: str, attributes: Mapping[str, Value]) -> str:
    """Name a stage so that what differs is told apart: `rl.logprob ref`, `rl.idle data`, `rl.checkpoint load`."""
    if not name.strip():
        return NAMELESS
    if name == v.CHECKPOINT and attributes.get(v.CHECKPOINT_LOAD) is True:
        return f"{name} load"
    key = {v.LOGPROB: v.LOGPROB_KIND, v.IDLE: v.IDLE_REASON}.get(name)
    qualifier = text(attributes, key) if key else ""
    return f"{name} {qualifier}" if qualifier else name


def call_of(name: str, attributes: Mapping[str, Value]) -> str:
    """Say what else a call may be measured by: a step's container, of milliseconds, not by set-up's, of minutes."""
    is_phase = is_container(name) and iteration_of(attributes) is None
    return f"{v.SETUP} {name}" if is_phase else label(name, attributes)


def is_container(name: str) -> bool:
    """Whether a span is the container of one rank."""
    return name.startswith(v.CONTAINER)


def is_request(span: SpanView) -> bool:
    """Whether a span is a rollout request: a few of many, so that no stage is made of them."""
    return v.SUBMISSION in span.attributes


def is_derived(span: SpanView) -> bool:
    """Whether the sidecar made the span out of several ranks' collectives: it lies over what they recorded."""
    return span.name == v.IDLE and span.attributes.get(v.IDLE_REASON) == SKEW


def own_stages(spans: Sequence[SpanView]) -> Sequence[SpanView]:
    """Leave out spans of other libraries; what lies inside one belongs to the nearest stage around it.

    Args:
        spans: of one trace.
    """
    above = {span.span_id: span.parent_id for span in spans if not span.is_own}
    if not above:  # as in most steps
        return spans
    kept = [span for span in spans if span.is_own]
    for place, span in enumerate(kept):
        parent, left = span.parent_id, len(above)
        while parent in above and left:  # a damaged trace may go round
            parent, left = above[parent], left - 1
        if parent != span.parent_id:
            kept[place] = span._replace(parent_id=parent)
    return kept


def in_front(spans: Sequence[SpanView]) -> Sequence[SpanView]:
    """Leave out what holds nobody up: an asynchronous checkpoint and its collectives; its staging takes its place.

    Args:
        spans: of one trace.
    """
    around = {span.span_id: span.parent_id for span in spans if is_background(span.name, span.attributes)}
    if not around:  # as in most steps
        return spans
    staged = [
        span._replace(parent_id=around[span.parent_id])
        for span in spans
        if span.name == v.CHECKPOINT_STAGING and span.parent_id in around
    ]
    return staged + [span for span in spans if span.span_id not in around and span.parent_id not in around]


def piece(span: SpanView) -> RankSpan:
    """Reduce a span to what the arithmetic needs."""
    return RankSpan(
        key=span.span_id,
        parent=span.parent_id,
        label=label(span.name, span.attributes),
        begin_ns=span.start_ns,
        end_ns=span.end_ns,
        is_comm=span.name == v.COMM,
        comm=_comm(span.attributes),
        is_hidden=span.attributes.get(v.COMM_HIDDEN) is True,
        is_host_clock=span.attributes.get(v.CLOCK) == "host",
        device_ns=_device_ns(span.attributes),
    )


def _device_ns(attributes: Mapping[str, Value]) -> int | None:
    """Read how long the device took."""
    return _nanoseconds(attributes.get(v.DEVICE_TIME))


def _comm(attributes: Mapping[str, Value]) -> Comm | None:
    """Read the sum of a stage's collectives that its writer made."""
    time_ns = _nanoseconds(attributes.get(v.COMM_TIME))
    return None if time_ns is None else Comm(integer(attributes, v.COMM_COUNT), time_ns)


def _nanoseconds(time_s: Value | None) -> int | None:
    """Read a duration in seconds; None where there is none, or what is none: a span may carry anything of a user's."""
    return round(time_s * 1e9) if isinstance(time_s, int | float) and 0 <= time_s < inf else None
