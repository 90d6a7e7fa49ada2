"""What concerns otel_rl itself, and log records."""

from __future__ import annotations

from typing import Final

from otel_rl.vocabulary.kinds import attribute, counter, event, gauge, label, log_attribute

SIGNAL: Final = label("otel_rl.signal", "`traces`, `metrics` or `logs`")
REASON: Final = label("otel_rl.reason", "the reason, as in docs/failures.md; of retries the answer, as `HTTP 503`")

SELF_RECORDED: Final = counter("otel_rl.recorded", "{record}", "spans, points and logs recorded, by signal")
SELF_ENCODED: Final = counter("otel_rl.encoded", "{record}", "recorded ones that were encoded, by signal")
SELF_JOURNALED: Final = counter("otel_rl.journal.records", "{record}", "encoded ones written to the journal, by signal")
SELF_DROPPED: Final = counter("otel_rl.dropped", "{record}", "dropped records, by signal and reason")
SELF_CHANGED: Final = counter("otel_rl.changed", "{change}", "parts of records cut, replaced, added or left out")
SELF_ERRORS: Final = counter("otel_rl.errors", "{error}", "errors of otel_rl itself by reason; the host sees none")
SELF_BYTES: Final = counter("otel_rl.journal.bytes", "By", "bytes written to the journal")

SELF_SHIPPED: Final = counter("otel_rl.ship.records", "{record}", "records by signal and by outcome at the server")
SELF_FETCHED: Final = counter(
    "otel_rl.ship.fetched", "{record}", "records sent after they were left out; `otel_rl.ship.records` has them twice"
)
SELF_RETRIED: Final = counter("otel_rl.ship.retries", "{request}", "requests sent again, by signal, outcome and answer")
SELF_WAITING: Final = gauge("otel_rl.ship.waiting", "By", "journaled bytes that are still to be sent")
SELF_OLDEST: Final = gauge("otel_rl.ship.oldest_age", "s", "age of the oldest record that waits to be sent")
SELF_WRITERS: Final = gauge("otel_rl.ship.writers", "{process}", "living processes of the run here, without sidecars")
SELF_DERIVED: Final = counter("otel_rl.derive.steps", "{step}", "steps of a role compared over ranks, by outcome")

OUTCOME: Final = label(
    "otel_rl.outcome",
    "of records `shipped`, `rejected` (partial success), `refused`, `left_out` or `damaged`; of retries `later`, or "
    "`blocked` until the settings are mended; of steps `derived`, or the reason; see docs/failures.md",
)

OPEN: Final = event("rl.stage.open", "a stage that was open when the journal was written; if it ends, a span follows")
ENDED: Final = event(
    "rl.stage.ended",
    "the end of a stage that was journaled as open and whose span is elsewhere, or is written once the attempt is "
    "known",
)
OUT_OF_MEMORY: Final = event("rl.memory.exhausted", "out of memory, with the memory and the tokens of every open stage")
CLOCK_STEPPED: Final = event("otel_rl.clock.stepped", "the wall clock jumped against the monotonic one; times follow")
CLOCK_SET: Final = attribute(
    "otel_rl.clock.set",
    "int",
    "of a container: by how much the wall clock had been set since the process began, ns; subtract it for times of "
    "an unset clock; absent if it was never set",
)
NO_STATISTICS: Final = event(
    "otel_rl.engine.no_statistics", "an engine does not report what its numbers need; the text says how to get it"
)

START_TIME: Final = log_attribute("otel_rl.start_time", "int", "when the open stage began, ns since 1970")
PARENT_ID: Final = log_attribute("otel_rl.parent_id", "string", "span id of the open stage's parent, 16 hex digits")
