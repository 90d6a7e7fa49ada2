"""The tables that a query reads, as data; `docs/tables.md` is generated from them.

The names are also those of views over other stores of the same telemetry: attributes are a map of texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from otel_rl import vocabulary as v

SqlType = Literal["VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP_NS", "MAP(VARCHAR, VARCHAR)"]


@dataclass(frozen=True, slots=True)
class SqlColumn:
    """A column of a table."""

    name: str
    type: SqlType
    unit: str
    sentence: str


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table of a run."""

    name: str
    sentence: str
    columns: tuple[SqlColumn, ...]


def _text(name: str, sentence: str) -> SqlColumn:
    return SqlColumn(name, "VARCHAR", "", sentence)


def _count(name: str, unit: str, sentence: str) -> SqlColumn:
    return SqlColumn(name, "BIGINT", unit, sentence)


def _seconds(name: str, sentence: str) -> SqlColumn:
    return SqlColumn(name, "DOUBLE", "s", sentence)


def _flag(name: str, sentence: str) -> SqlColumn:
    return SqlColumn(name, "BOOLEAN", "", sentence)


def _time(name: str, sentence: str) -> SqlColumn:
    return SqlColumn(name, "TIMESTAMP_NS", "UTC", sentence)


def _map(name: str, sentence: str) -> SqlColumn:
    return SqlColumn(name, "MAP(VARCHAR, VARCHAR)", "", sentence)


ATTEMPT: Final = _text("attempt", "Id of the start of the job.")
ROLE: Final = _text("role", "Role of the process, such as `trainer`.")
RANK: Final = _count("rank", "", "Rank, unique within the role.")
PROCESS: Final = (ATTEMPT, ROLE, RANK)
STEP: Final = (
    ATTEMPT,
    _text("loop", "Training loop: `train`, then `train.2` for a further one of a process."),
    _count("step", "", "Number of the step, as the framework logs it."),
    ROLE,
    RANK,
)
IS_AVERAGED: Final = _flag("is_averaged", "The report's averages use this step: it is whole, and not one of the first.")
IS_GUEST: Final = _flag("is_guest", "It is the step of a driver, in which this rank only gets calls.")
STAGE: Final = _text("stage", "Stage, with what distinguishes it: `rl.logprob ref`.")
BEGIN: Final = _time("begin_time", "When it began.")
END: Final = _time("end_time", "When it ended.")
TRACE: Final = _text("trace_id", "Id of the trace, 32 hexadecimal digits.")
SPAN: Final = _text("span_id", "Id of the span, 16 hexadecimal digits.")
IS_LEAST: Final = _flag("is_least", "The wait is a lower bound: not every collective was seen on every rank.")

STEPS: Final = SqlTable(
    "steps",
    "A step of a rank. Active, wait, transfer, inseparable, idle and other time add up to its duration.",
    (
        *STEP,
        BEGIN,
        _time("end_time", "When the next step of the rank began; its own end if none follows."),
        _seconds("duration_s", "Time of the step."),
        _seconds("active_s", "Time in stages, outside of collectives."),
        _seconds("wait_s", "Time in collectives, waiting for slower ranks."),
        _seconds("transfer_s", "Time in collectives that is no wait."),
        _seconds("inseparable_s", "Time in stages whose collectives cannot be separated."),
        _seconds("idle_s", "Time in `rl.idle`: for data, for a queue, for a controller."),
        _seconds("other_s", "Time under no stage."),
        IS_LEAST,
        _count("samples", "{sample}", "Samples that it handled; null if no stage says it."),
        _count("prompt_tokens", "{token}", "Tokens of prompts; null if no stage says it."),
        _count("response_tokens", "{token}", "Tokens of responses; null if no stage says it."),
        _count("environment_tokens", "{token}", "Tokens of an environment; null if no stage says it."),
        _count("padding_tokens", "{token}", "Positions of padding; null if a forward does not say it."),
        _count("train_tokens", "{token}", "Tokens that the loss uses; null if no stage says it."),
        _flag("is_whole", "It ended by itself: neither a death nor an exception ended it."),
        IS_AVERAGED,
        IS_GUEST,
    ),
)
STAGES: Final = SqlTable(
    "stages",
    f"A stage in a step of a rank. `{v.OTHER}` is what lies under no stage.",
    (
        *STEP,
        STAGE,
        _text("inside", "Stage that it lies in; empty directly in the step."),
        _count("calls", "{call}", "Number of its calls."),
        _seconds("total_s", "Time in it; overlapping calls count once."),
        _seconds("own_s", "The same without collectives and waits, except waits for data."),
        _count("collectives", "{collective}", "Number of collectives in it."),
        _seconds("comm_s", "Time in them."),
        _flag("is_comm_hidden", "Collectives in it cannot be separated."),
        _flag("is_host_clock", "The host's clock measures launches of a device's work."),
        IS_AVERAGED,
        IS_GUEST,
    ),
)
WAITS: Final = SqlTable(
    "waits",
    "How long a rank waited for slower ones in the collectives of a stage in a step.",
    (*STEP, STAGE, _seconds("wait_s", "Time waited."), IS_LEAST, IS_AVERAGED),
)
CALLS: Final = SqlTable(
    "calls",
    "A call of a stage directly in a step of a rank, compared with the same call on its peers.",
    (
        *STEP,
        STAGE,
        _count("turn", "", "Which of the stage's calls in the step it is, from 0."),
        _seconds("duration_s", "Time of the call."),
        _seconds("own_s", "The same without collectives and waits; 0 if these cannot be separated."),
        _seconds("comm_s", "Time in collectives."),
        _seconds("wait_s", "The part of it that waits for slower ranks."),
        IS_LEAST,
        IS_AVERAGED,
    ),
)
SPANS: Final = SqlTable(
    "spans",
    "A finished span, as it was journaled, also of other libraries.",
    (
        *PROCESS,
        _text("loop", "Training loop of its trace; empty if it is no step's."),
        _count("step", "", "Step of its trace; null if it is no step's."),
        TRACE,
        SPAN,
        _text("parent_id", "Id of the parent; empty if it has none."),
        _text("name", "Name of the span."),
        STAGE,
        BEGIN,
        END,
        _seconds("duration_s", "Time from begin to end."),
        _text("status", "`unset`, `ok` or `error`."),
        _map("attributes", "Attributes as texts; docs/catalogue.md lists them."),
    ),
)
POINTS: Final = SqlTable(
    "points",
    "A point of a metric. Those of counters and histograms are cumulative.",
    (
        _text("metric", "Name of the metric; docs/catalogue.md lists them."),
        _text("kind", "`gauge`, `counter` or `histogram`."),
        _text("unit", "Unit of the metric."),
        _time("time", "When it was recorded."),
        SqlColumn("value", "DOUBLE", "of the metric", "Value of a gauge or a counter; null for a histogram."),
        _count("count", "", "Number of values of a histogram; null for others."),
        SqlColumn("sum", "DOUBLE", "of the metric", "Sum of the values of a histogram; null for others."),
        _map("labels", "Attributes of the point as texts."),
        *PROCESS,
    ),
)
CURVES: Final = SqlTable(
    "curves",
    "A number of a step over all ranks, as the report shows it; of a repeated step the newest attempt's.",
    (
        _text("metric", "Name of the metric; a number of `otel_rl.record` is `user.NAME`."),
        _text("unit", "Unit of the metric."),
        _map("labels", "What distinguishes series of the same metric."),
        _count("step", "", "Number of the step; null if it was recorded outside of steps."),
        SqlColumn("value", "DOUBLE", "of the metric", "Mean over the ranks, or their extreme; null if not finite."),
    ),
)
REQUESTS: Final = SqlTable(
    "requests",
    "A rollout request that is a span: the failed, the extreme and a sample of all.",
    (
        *PROCESS,
        _text("loop", "Training loop of its trace; empty if it is no step's."),
        _count("step", "", "Step of its trace; null if it is no step's."),
        TRACE,
        SPAN,
        BEGIN,
        END,
        _seconds("duration_s", "Time from submit to end."),
        _text("engine", "The engine."),
        _text("model", "The model that was asked for."),
        _seconds("ttft_s", "First token - submit."),
        _seconds("queue_s", "Scheduled - submit."),
        _seconds("prefill_s", "First token - scheduled."),
        _seconds("tpot_s", "Time of an output token after the first."),
        _count("input_tokens", "{token}", "Tokens of the prompt."),
        _count("output_tokens", "{token}", "Tokens of the response."),
        _count("cached_tokens", "{token}", "Tokens of the prompt that the prefix cache had."),
        _text("finish", "Reasons of the end, as a list in JSON: `stop`, `length`, `abort`."),
        _text("sample_id", "Id of the sample that it is part of."),
        _text("group_id", "Id of the group of samples that rewards are compared in."),
        _text("kept", "Why it is a span: `failed`, `slowest`, `ttft`, `longest`, `sample`."),
        _text("status", "`unset`, `ok` or `error`."),
    ),
)
LOGS: Final = SqlTable(
    "logs",
    "A log record, as it was journaled.",
    (
        *PROCESS,
        _time("time", "When it was recorded."),
        _text("event", "Name of the event; docs/catalogue.md lists them."),
        _count("severity", "", "Number of the severity: 9 is info, 13 a warning, 17 an error."),
        _text("body", "Text of the record."),
        _text("trace_id", "Id of the trace; empty if it has none."),
        _text("span_id", "Id of the span; empty if it has none."),
        _map("attributes", "Attributes as texts."),
    ),
)
TABLES: Final = {table.name: table for table in (STEPS, STAGES, WAITS, CALLS, SPANS, POINTS, CURVES, REQUESTS, LOGS)}

REQUEST_COLUMNS: Final = {
    "engine": v.PROVIDER,
    "model": v.REQUEST_MODEL,
    "ttft_s": v.REQUEST_TTFT,
    "queue_s": v.REQUEST_QUEUE,
    "prefill_s": v.REQUEST_PREFILL,
    "tpot_s": v.REQUEST_TPOT,
    "input_tokens": v.INPUT_TOKENS,
    "output_tokens": v.OUTPUT_TOKENS,
    "cached_tokens": v.CACHED_TOKENS,
    "finish": v.FINISH_REASONS,
    "sample_id": v.SAMPLE_ID,
    "group_id": v.GROUP_ID,
    "kept": v.REQUEST_KEPT,
}
"""The attribute of a span that a column of ``requests`` is."""
