"""The span of one request."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.ids import random_bits
from otel_rl.records import Value
from otel_rl.requests import Request
from otel_rl.rollouts import bulk_plain
from otel_rl.rollouts.candidates import Kept
from otel_rl.rollouts.columns import Derived
from otel_rl.rollouts.labels import submission
from otel_rl.runtime import Trace
from otel_rl.spans import Stage

REMOTE: Final = frozenset(("openai",))
"""Engines that another process runs: their spans are those of a client."""
CLIENT: Final = 3
"""OTLP's span kinds."""
INTERNAL: Final = 1
ERROR: Final = 2
"""OTLP's status code."""


def request_span(kept: Kept, trace: Trace, derived: Derived) -> Stage:
    """Make the span of a request.

    Args:
        kept: the request, and why it is a span.
        trace: the trace it belongs to; its anchor places the times.
        derived: its own times alone.
    """
    row = kept.row
    span = Stage(f"{row.operation} {row.model}".strip(), _attributes(kept, derived))
    span.trace, span.parent_id, span.span_id = trace, kept.parent_id, random_bits(64) or 1
    span.ended = derived.ended[0]
    times = (row.submitted, row.scheduled, row.first_token)
    span.began = next((time for time in times if 0 < time <= span.ended), span.ended)
    span.kind = CLIENT if row.engine in REMOTE else INTERNAL
    if row.error or row.finish == "error":
        span.status = (ERROR, "")
    return span


def derive_one(row: Request, now: int) -> Derived:
    """Derive the times of a single request."""
    return bulk_plain.derive_rows((row,), now)


def _attributes(kept: Kept, derived: Derived) -> dict[str, Value]:
    row = kept.row
    attributes: dict[str, Value] = {
        v.OPERATION: row.operation,
        v.PROVIDER: row.engine,
        v.SUBMISSION: submission(row),
        v.REQUEST_KEPT: kept.why,
    }
    if row.finish:
        attributes[v.FINISH_REASONS] = (row.finish,)
    texts = {
        v.REQUEST_MODEL: row.model,
        v.RESPONSE_ID: row.id,
        v.REPLICA: row.replica,
        v.SAMPLE_ID: row.sample,
        v.GROUP_ID: row.group,
        v.ERROR_TYPE: row.error,
    }
    counts = {
        v.INPUT_TOKENS: derived.input[0],
        v.OUTPUT_TOKENS: derived.output[0],
        v.CACHED_TOKENS: derived.cached[0],
        v.MAX_TOKENS: row.limit,
        v.TURN: row.turn,
        v.POLICY_VERSION: row.policy_start,
        v.POLICY_VERSION_END: row.policy_end,
        v.REQUEST_PREEMPTED: derived.preemptions[0],
    }
    times = {
        v.REQUEST_TTFT: derived.ttft[0],
        v.REQUEST_QUEUE: derived.queue[0],
        v.REQUEST_PREFILL: derived.prefill[0],
        v.REQUEST_DECODE: derived.decode[0],
        v.REQUEST_TPOT: derived.tpot[0],
    }
    attributes.update({key: text for key, text in texts.items() if text})
    attributes.update({key: count for key, count in counts.items() if count >= 0})
    attributes.update({key: time / 1e9 for key, time in times.items() if time >= 0})
    if 0 <= row.policy_start <= row.policy_end:
        attributes[v.POLICY_LAG] = row.policy_end - row.policy_start
    if row.finish in ("abort", "timeout"):
        attributes[v.REQUEST_ABORTED if row.finish == "abort" else v.REQUEST_TIMED_OUT] = True
    return attributes
