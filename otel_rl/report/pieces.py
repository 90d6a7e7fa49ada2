"""From journaled spans to what the arithmetic takes: labels, ranks, numbers out of attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Comm, Piece
from otel_rl.journal.read import SpanView
from otel_rl.records import Value
from otel_rl.report.model import Rank

KEYS: Final = (
    v.ITERATION, v.LOOP_NAME, v.MODE, v.IDLE_REASON, v.LOGPROB_KIND, v.TOKENS, v.TOKENS_PROMPT, v.TOKENS_RESPONSE,
    v.TOKENS_PADDING, v.SAMPLE_BATCH_SIZE, v.BATCH_SIZE, v.COMM_COUNT, v.COMM_TIME, v.COMM_HIDDEN, v.CLOCK,
    v.TRUNCATED, v.ERROR_TYPE, v.SUBMISSION,
)  # fmt: skip
"""The attributes that stages are made from."""

NAMELESS: Final = "unnamed"
"""What a stage is called whose name is blank."""


@dataclass(slots=True)
class Work:
    """What was handled: samples and tokens."""

    samples: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    padding_tokens: int = 0
    train_tokens: int = 0

    def add(self, other: Work) -> None:
        """Add the counts of another one."""
        self.samples += other.samples
        self.prompt_tokens += other.prompt_tokens
        self.response_tokens += other.response_tokens
        self.padding_tokens += other.padding_tokens
        self.train_tokens += other.train_tokens


def integer(attributes: Mapping[str, Value], key: str) -> int:
    """Read a whole number; 0 where it is absent or something else."""
    value = attributes.get(key)
    return int(value) if isinstance(value, int) else 0


def text(attributes: Mapping[str, Value], key: str) -> str:
    """Read a text; empty where it is absent."""
    value = attributes.get(key)
    return "" if value is None else str(value)


def rank_of(resource: Mapping[str, Value]) -> Rank:
    """Say which rank a resource belongs to."""
    return Rank(text(resource, v.ROLE) or "trainer", integer(resource, v.RANK))


def iteration_of(attributes: Mapping[str, Value]) -> int | None:
    """Read the number of the step; None where the span is no part of one."""
    value = attributes.get(v.ITERATION)
    return value if isinstance(value, int) else None


def label(name: str, attributes: Mapping[str, Value]) -> str:
    """Name a stage so that what differs is told apart: `rl.logprob old` and `rl.logprob ref`, `rl.idle data`."""
    if not name.strip():
        return NAMELESS
    key = {v.LOGPROB: v.LOGPROB_KIND, v.IDLE: v.IDLE_REASON}.get(name)
    qualifier = text(attributes, key) if key else ""
    return f"{name} {qualifier}" if qualifier else name


def is_container(name: str) -> bool:
    """Whether a span is the container of one rank."""
    return name.startswith(f"{v.RANK_SPAN} ")


def is_request(span: SpanView) -> bool:
    """Whether a span is a rollout request: a few of many, so that no stage is made of them."""
    return v.SUBMISSION in span.attributes


def piece(span: SpanView) -> Piece:
    """Reduce a span to what the arithmetic needs."""
    return Piece(
        key=span.span_id,
        parent=span.parent_id,
        label=label(span.name, span.attributes),
        begin_ns=span.start_ns,
        end_ns=span.end_ns,
        is_comm=span.name == v.COMM,
        comm=_comm(span.attributes),
        is_hidden=span.attributes.get(v.COMM_HIDDEN) is True,
        is_host_clock=span.attributes.get(v.CLOCK) == "host",
    )


def _comm(attributes: Mapping[str, Value]) -> Comm | None:
    """Read the sum of a stage's collectives that its writer made."""
    time_s = attributes.get(v.COMM_TIME)
    return Comm(integer(attributes, v.COMM_COUNT), round(time_s * 1e9)) if isinstance(time_s, int | float) else None


def work_of(span: SpanView) -> Work | None:
    """Read what a training stage handled: rollouts count each sample once, training counts every forward."""
    attributes = span.attributes
    if attributes.get(v.MODE) == "eval":
        return None
    if span.name == v.SAMPLE:
        return Work(
            samples=integer(attributes, v.SAMPLE_BATCH_SIZE) or integer(attributes, v.BATCH_SIZE),
            prompt_tokens=integer(attributes, v.TOKENS_PROMPT),
            response_tokens=integer(attributes, v.TOKENS_RESPONSE),
        )
    if span.name == v.FORWARD:
        return Work(train_tokens=integer(attributes, v.TOKENS), padding_tokens=integer(attributes, v.TOKENS_PADDING))
    return None
