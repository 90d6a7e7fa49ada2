"""What concerns otel_rl itself, and log records."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, event, metric

SIGNAL: Final = attribute("otel_rl.signal", "string", "metric", "`traces`, `metrics` or `logs`")
REASON: Final = attribute(
    "otel_rl.reason", "string", "metric", "why: a word of docs/failures.md; of retries the answer, as `HTTP 503`"
)

SELF_RECORDED: Final = metric("otel_rl.recorded", "counter", "{record}", "spans, points and logs recorded, by signal")
SELF_ENCODED: Final = metric("otel_rl.encoded", "counter", "{record}", "recorded ones that could be encoded, by signal")
SELF_JOURNALED: Final = metric(
    "otel_rl.journal.records", "counter", "{record}", "encoded ones written to the journal, by signal"
)
SELF_DROPPED: Final = metric("otel_rl.dropped", "counter", "{record}", "records given up, by signal and reason")
SELF_CHANGED: Final = metric(
    "otel_rl.changed",
    "counter",
    "{change}",
    "what was cut, replaced, added to or left out of records that are kept, by reason",
)
SELF_ERRORS: Final = metric(
    "otel_rl.errors", "counter", "{error}", "errors of otel_rl itself, by reason; the host never sees them"
)
SELF_BYTES: Final = metric("otel_rl.journal.bytes", "counter", "By", "bytes written to the journal")

SELF_SHIPPED: Final = metric(
    "otel_rl.ship.records", "counter", "{record}", "records by signal and by what became of them at the other side"
)
SELF_FETCHED: Final = metric(
    "otel_rl.ship.fetched",
    "counter",
    "{record}",
    "records that were left out and sent after all, since a child was: `otel_rl.ship.records` has them twice",
)
SELF_RETRIED: Final = metric(
    "otel_rl.ship.retries", "counter", "{request}", "requests that are sent again, by signal, outcome and answer"
)
SELF_WAITING: Final = metric("otel_rl.ship.waiting", "gauge", "By", "journaled bytes that are still to be sent")
SELF_OLDEST: Final = metric("otel_rl.ship.oldest_age", "gauge", "s", "age of the oldest record that waits to be sent")
SELF_WRITERS: Final = metric(
    "otel_rl.ship.writers", "gauge", "{process}", "processes of the run on this node that live, without sidecars"
)
SELF_DERIVED: Final = metric(
    "otel_rl.derive.steps", "counter", "{step}", "steps of a role that the sidecar compared over ranks, by outcome"
)

OUTCOME: Final = attribute(
    "otel_rl.outcome",
    "string",
    "metric",
    "of records: `shipped`, `rejected` (partial success), `refused`, `left_out` (beyond the share of a trace, or the "
    "end of a stage that had been closed) or `damaged`; of retries: `later`, or `blocked` until somebody mends the "
    "settings; of steps: `derived`, or why not: a word of docs/failures.md",
)

OPEN: Final = event("rl.stage.open", "a stage that was open when the journal was written; its end, if any, is its span")
ENDED: Final = event(
    "rl.stage.ended",
    "a stage that was journaled as open and whose span is not here: a rank that does not know its attempt keeps it "
    "back, and a worker that begins to train has it in its own run",
)
OUT_OF_MEMORY: Final = event(
    "rl.memory.exhausted", "an out-of-memory error, with the memory and the tokens of every open stage"
)
CLOCK_STEPPED: Final = event(
    "otel_rl.clock.stepped", "the wall clock jumped against the monotonic one; times are re-anchored"
)
CLOCK_SET: Final = attribute(
    "otel_rl.clock.set",
    "int",
    "span",
    "of a container: by how much the wall clock had been set in all when it began, since the process began, ns; less "
    "that its times are those of a clock that nobody set. Absent where it was not set",
)
NO_STATISTICS: Final = event(
    "otel_rl.engine.no_statistics",
    "a rollout engine that does not tell what its numbers need; the text says how to get it",
)

START_TIME: Final = attribute("otel_rl.start_time", "int", "log", "when the open stage began, ns since 1970")
PARENT_ID: Final = attribute("otel_rl.parent_id", "string", "log", "span id of the open stage's parent, 16 hex digits")
