"""The four log layers as JSON: one object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Final

from otel_rl import vocabulary as v
from otel_rl.journal.read import LogView, Run
from otel_rl.records import Value
from otel_rl.report.read.span_attributes import rank_of
from otel_rl.runs.spans import iteration_of, text

SCOPES: Final = {
    v.LOOP_LINE: "loop", v.ROLLOUT_LINE: "rollout", v.UPDATE_LINE: "update", v.SAMPLE_RECORD: "sample",
}  # fmt: skip
LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
"""Each has four numbers in OpenTelemetry."""


def log_lines(run: Run) -> Iterator[str]:
    """Yield each record of the four layers as a line; within a process in the order of the journal."""
    for log in run.logs(SCOPES.keys()):
        yield json.dumps(_record(log), allow_nan=False)


def _record(log: LogView) -> dict[str, Any]:
    rank = rank_of(log.resource)
    return {
        "timestamp": _timestamp(log.time_ns),
        "level": LEVELS[min(max(log.severity - 1, 0) // 4, len(LEVELS) - 1)],
        "scope": SCOPES[log.event_name],
        "step": iteration_of(log.attributes),
        "loop": text(log.attributes, v.LOOP_NAME),
        "attempt": text(log.resource, v.ATTEMPT_ID),
        "role": rank.role,
        "rank": rank.rank,
        "message": log.body,
        "trace_id": log.trace_id.hex(),
        "span_id": log.span_id.hex(),
        **{key: _value(value) for key, value in log.attributes.items() if key not in (v.ITERATION, v.LOOP_NAME)},
    }


def _timestamp(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError):  # of a damaged record
        return str(time_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def _value(value: Value) -> Any:
    """Return an attribute as JSON has it: NaN and infinities are texts, as in OTLP/JSON."""
    if isinstance(value, tuple | list):
        return [_value(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
