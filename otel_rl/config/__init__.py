"""Settings of recording: their environment variables, once; `sidecar/settings.py` reads `OTEL_EXPORTER_OTLP_*`."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, Literal

from otel_rl.config import parsers
from otel_rl.config.parsers import (
    EXPONENTIAL,
    LONGEST_SHOWN,
    MIB,
    ProcessKind,
    expanded,
    expanded_path,
    standard_boolean,
)
from otel_rl.vocabulary import SERVICE_NAME

PREFIX = "OTEL_RL_"
ON_FINDING = PREFIX + "ON_FINDING"
ON_FINDING_SECRET = ON_FINDING + "_SECRET"
FOREIGN = PREFIX + "FOREIGN_ENDPOINT"
TRACES_URL = PREFIX + "TRACES_URL"
LAUNCH = PREFIX + "LAUNCH"
"""Mark by which `otel-rl run` finds its processes: the ids of enclosing launches, outermost first, joined by `/`."""
WITHOUT_SDK = "the OpenTelemetry SDK cannot be imported, so spans and metrics of other libraries are not recorded"
OF_COLLECTOR = frozenset(
    PREFIX + name
    for name in (
        "CA", "CERT", "CLICKHOUSE", "CLICKHOUSE_DATABASE", "CLICKHOUSE_KEEP", "CLICKHOUSE_PASSWORD",
        "CLICKHOUSE_USER", "CLIENT_CA", "COLLECTOR", "DCGM", "DRAIN_S", "GATEWAY", "GATEWAY_PORT", "GRPC", "HEALTH",
        "HOST_ROOT", "HTTP", "JAEGER", "JAEGER_HEADERS", "JAEGER_HEALTH", "JAEGER_OTLP", "JAEGER_OWN",
        "JAEGER_QUERY", "JAEGER_TLS", "JAEGER_TRACES", "JAEGER_UI", "KEY", "LOCAL_TOKEN_FILE", "LOGS",
        "LOGS_HEADERS", "LOGS_TLS", "LOGS_TO", "METRICS_FROM", "METRICS_SCHEME", "METRICS_TOKEN_FILE", "NPU",
        "OTELCOL", "OWN", "PROMETHEUS", "PROMETHEUS_HEADERS", "PROMETHEUS_PATH", "PROMETHEUS_TLS", "QUEUE_DIR",
        "SGLANG", "STACK_DIR", "TEMPO", "TEMPO_GRPC_PORT", "TEMPO_HEADERS", "TEMPO_HOST", "TEMPO_OTLP", "TEMPO_PORT",
        "TEMPO_TLS", "TOKEN_FILE", "TRACES_SCHEME", "TRACES_TO", "TRACES_TOKEN_FILE", "VLLM",
    )
)  # fmt: skip
"""Variables of the configurations in ``collector/``; otel_rl ignores them without a warning."""


class ConfigurationError(ValueError):
    """A setting has an impossible value; the message names the setting, the value and what is allowed."""


def _setting(variable: str, parse: Callable[[str], Any], default: Any, meaning: str) -> Any:
    return dataclass_field(default=default, metadata={"variable": variable, "parse": parse, "meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one process; ``from_env`` reads them, ``docs/catalogue.md`` lists them."""

    enabled: bool = _setting(
        "OTEL_RL_ENABLED", parsers.boolean, True, "false: no patch, no thread, no file; true: verl starts it, too"
    )
    directory: Path = _setting(
        "OTEL_RL_DIR", expanded_path, Path("otel_rl_runs"), "folder of the runs; `~` and `$NAME` are expanded"
    )
    run_id: str = _setting("OTEL_RL_RUN_ID", str, "", "the run's name; by default made of date, time and chance")
    attempt_id: str = _setting(
        "OTEL_RL_ATTEMPT_ID",
        parsers.attempt,
        "",
        "the attempt's id, equal on all ranks, new at each start; by default made",
    )
    process_kind: ProcessKind | Literal[""] = _setting(
        "OTEL_RL_PROCESS_KIND",
        parsers.kind,
        "",
        "`driver`, `rank`, `worker` or `engine`, where the process cannot know it; a worker or an engine belongs to "
        "the run of the first carrier that it uses",
    )
    integrations: tuple[str, ...] = _setting(
        "OTEL_RL_INTEGRATIONS",
        parsers.names,
        ("auto",),
        "what to instrument, comma-separated; `auto`: whatever is imported",
    )
    journal_max_bytes: int = _setting(
        "OTEL_RL_JOURNAL_MAX_BYTES",
        parsers.cap,
        4096 * MIB,
        "most bytes of one process's journal; the oldest spans go first",
    )
    capture_content: bool = _setting(
        "OTEL_RL_CAPTURE_CONTENT", parsers.boolean, False, "true: record texts of exceptions, stack traces and samples"
    )
    redact: str = _setting(
        "OTEL_RL_REDACT", parsers.function, "", "`module:function` that texts of samples pass; other texts are left out"
    )
    sample_records: int = _setting(
        "OTEL_RL_SAMPLE_RECORDS", parsers.count, 256, "most log records of samples of a step on one process; 0: none"
    )
    attribute_length: int = _setting(
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
        parsers.positive,
        2048,
        "longer texts of spans and logs are cut; ids are not",
    )
    request_spans: int = _setting(
        "OTEL_RL_REQUEST_SPANS", parsers.count, 256, "most request spans of a step on one process; 0: none"
    )
    request_failures: int = _setting(
        "OTEL_RL_REQUEST_FAILURES", parsers.count, 64, "of these, most errors, aborts and timeouts of a rollout"
    )
    request_extremes: int = _setting(
        "OTEL_RL_REQUEST_EXTREMES",
        parsers.count,
        8,
        "of these, the slowest of a rollout, as many by TTFT, and the longest",
    )
    request_sample: int = _setting(
        "OTEL_RL_REQUEST_SAMPLE", parsers.count, 32, "of these, a uniform sample of a rollout, by a hash of step and id"
    )
    sidecar: bool = _setting(
        "OTEL_RL_SIDECAR",
        parsers.boolean,
        True,
        "false: start no process to send records and find stalls; run `otel-rl sidecar RUN` yourself, once per node",
    )
    stall_factor: tuple[tuple[str, float], ...] = _setting(
        "OTEL_RL_STALL_FACTOR",
        parsers.by_stage,
        (),
        "a stage stalls after so many times its median duration, by default 6; of single stages: `6,rl.reward=20`",
    )
    stall_after: tuple[tuple[str, float], ...] = _setting(
        "OTEL_RL_STALL_AFTER",
        parsers.by_stage,
        (),
        "but not before this, s, by default 30: `30,rl.checkpoint=1800`, or `inf`",
    )
    on_finding: str = _setting(
        ON_FINDING, parsers.hook, "", "a command or an `https://` address that gets findings and stalls, as JSON"
    )
    on_finding_from: str = _setting(
        "OTEL_RL_ON_FINDING_FROM", parsers.severity, "alarm", "the least severity of these: `alarm` or `warning`"
    )
    on_finding_secret: str = _setting(
        ON_FINDING_SECRET, parsers.secret, "", "base64; signs what is posted, as standardwebhooks.com has it"
    )
    on_finding_format: str = _setting(
        "OTEL_RL_ON_FINDING_FORMAT", parsers.body, "json", "what is posted: `json`, or `slack` for a webhook of Slack"
    )
    foreign_endpoint: str = _setting(FOREIGN, str, "", "OTLP endpoint of the program's own spans; ours do not go there")
    event_loop_lag: bool = _setting(
        "OTEL_RL_EVENT_LOOP_LAG",
        parsers.boolean,
        False,
        "true: measure how late event loops are, by a call a second in each",
    )
    peak_flops: float = _setting(
        "OTEL_RL_PEAK_FLOPS",
        parsers.rate,
        0.0,
        "peak of one device for MFU, FLOP/s (`989e12`); 0: as published, if known",
    )
    backends: str = _setting(
        "OTEL_RL_BACKENDS", expanded, "", "folder in which `otel-rl stack` first looks for its programs"
    )
    tempo: str = _setting("OTEL_RL_TEMPO_PROGRAM", expanded, "", "`otel-rl stack` starts it; else `tempo` on PATH")
    traces_url: str = _setting(
        TRACES_URL,
        parsers.address,
        "",
        "where a page of a run links its traces, such as `http://127.0.0.1:16686`; with `{trace_id}`, any page of one",
    )
    rules: str = _setting("OTEL_RL_RULES", expanded, "", "settings of rules; else `otel_rl.toml` in the folder of runs")
    join_spans: bool = _setting(
        "OTEL_RL_JOIN_SPANS",
        parsers.boolean,
        False,
        "true: nest spans of the program's own tracer provider below our stages; changes their parents, trace ids and "
        "sampling",
    )
    service_name: str = _setting("OTEL_SERVICE_NAME", str, "", "`service.name`; by default `<system>-<role>`")
    resource_attributes: tuple[tuple[str, str], ...] = _setting(
        "OTEL_RESOURCE_ATTRIBUTES", parsers.pairs, (), "further attributes of the resource"
    )
    sampler: str = _setting(
        "OTEL_TRACES_SAMPLER", parsers.sampler, "always_on", "decides per step, alike on every rank"
    )
    sampler_ratio: float = _setting(
        "OTEL_TRACES_SAMPLER_ARG", parsers.ratio, 1.0, "share of the steps for traceidratio"
    )
    histograms: str = _setting(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        parsers.histograms,
        EXPONENTIAL,
        "`explicit_bucket_histogram`: few boundaries, for a store without exponential histograms",
    )
    disabled: bool = _setting(
        "OTEL_SDK_DISABLED", standard_boolean, False, "the standard switch; true is OTEL_RL_ENABLED=false"
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Read the settings; ignore variables of OpenTelemetry with impossible values.

        Raises:
            ConfigurationError: an ``OTEL_RL_`` variable has an impossible value.
        """
        wrong = not_possible(PARSERS, environ)
        for variable, allowed in wrong.items():
            if variable.startswith(PREFIX):
                text = "..." if variable in (ON_FINDING, ON_FINDING_SECRET) else environ[variable].strip()
                raise ConfigurationError(f"{variable}={text!r} is not possible: it takes {allowed}")
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = environ.get(field.metadata["variable"], "").strip()
            if text and field.metadata["variable"] not in wrong:
                values[field.name] = field.metadata["parse"](text)
        return cls(**values)

    @property
    def captures_errors(self) -> bool:
        """Return whether texts of exceptions are recorded: they pass no redaction, so with one they are left out."""
        return self.capture_content and not self.redact

    @property
    def is_exponential(self) -> bool:
        return self.histograms == EXPONENTIAL

    @property
    def service(self) -> str:
        """Return the user's ``service.name``, by OpenTelemetry's precedence; empty if not set."""
        return self.service_name or dict(self.resource_attributes).get(SERVICE_NAME, "")

    @property
    def active(self) -> bool:
        return self.enabled and not self.disabled


PARSERS: dict[str, Callable[[str], Any]] = {one.metadata["variable"]: one.metadata["parse"] for one in fields(Config)}
"""The parser of each setting."""
LOADS_SDK = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
"""The SDK reads it at its import, which fails if it is no number."""
LIMITS = {
    "OTEL_ATTRIBUTE_COUNT_LIMIT": "max_attributes",
    LOADS_SDK: "max_span_attributes",
    "OTEL_SPAN_EVENT_COUNT_LIMIT": "max_events",
    "OTEL_SPAN_LINK_COUNT_LIMIT": "max_links",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "max_event_attributes",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "max_link_attributes",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "max_span_attribute_length",
}
"""Limits that the SDK reads for spans of other libraries, and the arguments of ``SpanLimits`` that override them."""
CONTEXT = "OTEL_PYTHON_CONTEXT"
"""OpenTelemetry's API reads it at its import."""


def _context(text: str) -> str:
    from importlib.metadata import entry_points

    if not entry_points(group="opentelemetry_context", name=text):
        raise ValueError("the name of a context that is installed")
    return text


def _import_context() -> None:
    """Import the API's context without the traceback that it logs for an unknown one; we log one line."""
    logger = logging.getLogger("opentelemetry.context")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        importlib.import_module("opentelemetry.context")
    finally:
        logger.disabled = was_disabled


if CONTEXT in os.environ:
    _import_context()


def not_possible(known: Mapping[str, Callable[[str], Any]], environ: Mapping[str, str]) -> dict[str, str]:
    """Return each variable with an impossible value, and what is allowed."""
    found = {}
    for variable, parse in known.items():
        text = environ.get(variable, "").strip()
        try:
            if text:
                parse(text)
        except ValueError as error:
            found[variable] = str(error)
    return found


def ignored(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each variable of OpenTelemetry whose value is ignored, what is allowed, and what is used instead."""
    wrong = not_possible(PARSERS | dict.fromkeys(LIMITS, parsers.limit) | {CONTEXT: _context}, environ)
    return {
        variable: f"it takes {allowed}; {WITHOUT_SDK if variable == LOADS_SDK else 'its default is used'}"
        for variable, allowed in wrong.items()
        if not variable.startswith(PREFIX)
    }


def root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the runs, also if another setting is wrong."""
    text = environ.get("OTEL_RL_DIR", "").strip()
    return expanded_path(text) if text else Config().directory


def traces_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return where traces can be looked at, also if another setting is wrong; empty if that is not said."""
    text = environ.get(TRACES_URL, "").strip()
    return "" if not_possible({TRACES_URL: PARSERS[TRACES_URL]}, environ) else text


@dataclass(frozen=True)
class Setting:
    """One setting with its value and the source of the value."""

    variable: str
    value: str
    source: str
    meaning: str


def settings(environ: Mapping[str, str] = os.environ) -> list[Setting]:
    """Return every setting, with what is wrong with an impossible value."""
    listed = []
    wrong = not_possible(PARSERS, environ)
    for field in fields(Config):
        variable = field.metadata["variable"]
        text = environ.get(variable, "").strip()
        source = "environment" if text else "default"
        if variable in wrong:
            is_ours = variable.startswith(PREFIX)
            source = f"not possible: it takes {wrong[variable]}" if is_ours else "default"
            text = text if is_ours else ""
        default = ",".join(field.default) if isinstance(field.default, tuple) else str(field.default)
        listed.append(Setting(variable, text or default, source, field.metadata["meaning"]))
    return listed


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Return each unknown ``OTEL_RL_*`` variable with the nearest known one, or nothing."""
    variables = [one.metadata["variable"] for one in fields(Config)]
    known = [name.removeprefix(PREFIX) for name in variables if name.startswith(PREFIX)]
    ours = {name for name in environ if name.startswith(PREFIX)} - OF_COLLECTOR - {LAUNCH}
    strangers = sorted(name for name in ours if name.removeprefix(PREFIX) not in known)
    nearest = [difflib.get_close_matches(name.removeprefix(PREFIX), known, 1) for name in strangers]
    return [(name, PREFIX + near[0] if near else "") for name, near in zip(strangers, nearest, strict=True)]


def may_be_key(text: str) -> bool:
    """Return whether a value looks like a certificate or a key, which is never shown."""
    return "BEGIN" in text or "\n" in text or len(text) > LONGEST_SHOWN
