"""The span of one request."""

from __future__ import annotations

from typing import Final

from otel_rl import vocabulary as v
from otel_rl.ids import random_bits
from otel_rl.process.state import state
from otel_rl.records import Value
from otel_rl.requests.labels import submission
from otel_rl.requests.sampling import Kept
from otel_rl.trace.stage import Stage

REMOTE: Final = frozenset(("openai",))
"""Engines that another process runs: their spans are those of a client."""
CLIENT: Final = 3
"""OTLP's span kinds."""
INTERNAL: Final = 1
ERROR: Final = 2
"""OTLP's status code."""

OF_REQUEST: Final = {
    v.REQUEST_MODEL: "model",
    v.RESPONSE_ID: "id",
    v.REPLICA: "replica",
    v.SAMPLE_ID: "sample",
    v.GROUP_ID: "group",
    v.ERROR_TYPE: "error",
    v.MAX_TOKENS: "limit",
    v.TURN: "turn",
    v.POLICY_VERSION: "policy_start",
    v.POLICY_VERSION_END: "policy_end",
}
"""Attributes by the field of the request that they come from; what is empty or not known is left out."""
COUNTS: Final = {
    v.INPUT_TOKENS: "input",
    v.OUTPUT_TOKENS: "output",
    v.CACHED_TOKENS: "cached",
    v.REQUEST_PREEMPTED: "preemptions",
}
"""The same of derived counts."""
TIMES: Final = {
    v.REQUEST_TTFT: "ttft",
    v.REQUEST_QUEUE: "queue",
    v.REQUEST_PREFILL: "prefill",
    v.REQUEST_DECODE: "decode",
    v.REQUEST_TPOT: "tpot",
}
"""The same of derived times."""


def request_span(kept: Kept) -> Stage:
    """Make the span of a request.

    Args:
        kept: the request, its numbers, why it is a span, and its place; the anchor of that trace places the times.
    """
    request = kept.request
    span = Stage(f"{request.operation} {request.model}".strip(), _attributes(kept))
    span.trace, span.parent_id, span.span_id = kept.parent.trace, kept.parent.span_id, random_bits(64) or 1
    span.ended = ended = kept.numbers.ended
    begun = max(state.first_ns, 1)  # as where the times were judged
    for time in (request.submitted, request.scheduled, request.first_token):
        if begun <= time <= ended:
            span.began = time
            break
    else:
        span.began = ended
    span.kind = CLIENT if request.engine in REMOTE else INTERNAL
    if request.error or request.finish == "error":
        span.status = (ERROR, "")
    return span


def _attributes(kept: Kept) -> dict[str, Value]:
    request, numbers = kept.request, kept.numbers
    finish, first, last = request.finish, request.policy_start, request.policy_end
    attributes: dict[str, Value] = {
        v.OPERATION: request.operation,
        v.PROVIDER: request.engine,
        v.SUBMISSION: submission(request),
        v.REQUEST_KEPT: kept.why,
    }
    attributes.update(label for label in kept.labels if label[0] == v.MODE)
    if finish:
        attributes[v.FINISH_REASONS] = (finish,)
    for key, name in OF_REQUEST.items():
        value = getattr(request, name)
        if value >= 0 if isinstance(value, int) else value:
            attributes[key] = value
    for key, name in COUNTS.items():
        count = getattr(numbers, name)
        if count >= 0:
            attributes[key] = count
    for key, name in TIMES.items():
        time = getattr(numbers, name)
        if time >= 0:
            attributes[key] = time / 1e9
    if 0 <= first <= last:
        attributes[v.POLICY_LAG] = last - first
    if finish in ("abort", "timeout"):
        attributes[v.REQUEST_ABORTED if finish == "abort" else v.REQUEST_TIMED_OUT] = True
    return attributes
