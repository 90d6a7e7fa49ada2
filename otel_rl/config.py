"""Settings: every environment variable that otel_rl reads, once."""

from __future__ import annotations

import difflib
import importlib
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from otel_rl.vocabulary import SERVICE_NAME

PREFIX = "OTEL_RL_"
MIB = 1 << 20
LAUNCH = PREFIX + "LAUNCH"
"""No setting: by it `otel-rl run` marks the processes of its command, with an id of each launch that they are within,
the outermost first and a `/` between two."""
EXPONENTIAL = "base2_exponential_bucket_histogram"
LONGEST_SHOWN = 256
"""Characters of a value that is printed or logged."""
WITHOUT_SDK = "the OpenTelemetry SDK cannot be imported, so spans and metrics of other libraries are not recorded"
OF_COLLECTOR = frozenset(
    PREFIX + name
    for name in (
        "CA", "CERT", "CLIENT_CA", "COLLECTOR", "DCGM", "DRAIN_S", "GATEWAY", "GATEWAY_PORT", "GRPC", "HEALTH",
        "HOST_ROOT", "HTTP", "JAEGER", "JAEGER_HEADERS", "JAEGER_HEALTH", "JAEGER_OTLP", "JAEGER_OWN",
        "JAEGER_QUERY", "JAEGER_TLS", "JAEGER_TRACES", "JAEGER_UI", "KEY", "LOCAL_TOKEN_FILE", "LOGS",
        "LOGS_HEADERS", "LOGS_TLS", "LOGS_TO", "METRICS_FROM", "METRICS_SCHEME", "METRICS_TOKEN_FILE", "NPU",
        "OTELCOL", "OWN", "PROMETHEUS", "PROMETHEUS_HEADERS", "PROMETHEUS_PATH", "PROMETHEUS_TLS", "QUEUE_DIR",
        "SGLANG", "STACK_DIR", "TEMPO", "TEMPO_GRPC_PORT", "TEMPO_HEADERS", "TEMPO_HOST", "TEMPO_OTLP", "TEMPO_PORT",
        "TEMPO_TLS", "TOKEN_FILE", "TRACES_SCHEME", "TRACES_TO", "TRACES_TOKEN_FILE", "VLLM",
    )
)  # fmt: skip
"""What the configurations in ``collector/`` read; it means nothing to us, and is no mistake where we find it."""


class ConfigurationError(ValueError):
    """A setting has a value that it cannot have; the message names the setting, the value and what is allowed."""


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("true or false")
    return values[text.lower()]


def standard_boolean(text: str) -> bool:
    """Read a switch as OpenTelemetry does: it has one word for true, and none may be added.

    Raises:
        ValueError: it is neither; the message says what is allowed.
    """
    if text.lower() not in {"true", "false"}:
        raise ValueError("true or false")
    return text.lower() == "true"


def _whole(text: str, least: int, allowed: str) -> int:
    """Read a whole number; one that fits nowhere is as large as can be."""
    is_number = text.isascii() and text.isdigit()
    number = min(int(text), sys.maxsize) if is_number and len(text) <= LONGEST_SHOWN else sys.maxsize
    if not is_number or number < least:
        raise ValueError(allowed)
    return number


def _positive(text: str) -> int:
    return _whole(text, 1, "a whole number above 0")


def _cap(text: str) -> int:
    """A segment is an eighth of the cap and has to hold a request of 1 MiB: what goes first would else take all."""
    return _whole(text, 8 * MIB, f"a whole number of bytes, at least {8 * MIB} (8 MiB)")


def _count(text: str) -> int:
    return _whole(text, 0, "a whole number, 0 or above")


def _limit(text: str) -> int:
    """Check what the SDK reads itself: it makes a list of this length."""
    if _count(text) == sys.maxsize:
        raise ValueError(f"a whole number below {sys.maxsize}")
    return int(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ValueError("a number from 0 to 1")
    return ratio


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < math.inf:
        raise ValueError("a number of operations per second, above 0, such as 989e12")
    return rate


def _sampler(text: str) -> str:
    base = text.lower().removeprefix("parentbased_")
    if base not in {"always_on", "always_off", "traceidratio"}:
        raise ValueError("always_on, always_off or traceidratio, also with parentbased_ before it")
    return base


def _histograms(text: str) -> str:
    if text.lower() not in {EXPONENTIAL, "explicit_bucket_histogram"}:
        raise ValueError(f"{EXPONENTIAL} or explicit_bucket_histogram")
    return text.lower()


def _attempt(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,127}", text):
        raise ValueError("at most 128 letters, digits and _.:@+-, the first a letter or digit")
    return text


def expanded(path: str) -> str:
    """Return a path with ``~`` and ``$NAME`` replaced, as a shell does; what is not known stays as it is."""
    return os.path.expanduser(os.path.expandvars(path))


def expanded_path(text: str) -> Path:
    """Return the path that a person gives."""
    return Path(expanded(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    if not all(equals and key.strip() for key, equals, _ in pairs):
        raise ValueError("key=value pairs with commas between them")
    return tuple((key.strip(), unquote(value.strip())) for key, _, value in pairs)


def _setting(variable: str, parse: Callable[[str], Any], default: Any, meaning: str) -> Any:
    return dataclass_field(default=default, metadata={"variable": variable, "parse": parse, "meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one process; ``from_env`` reads them, ``docs/catalogue.md`` lists them."""

    enabled: bool = _setting(
        "OTEL_RL_ENABLED", _boolean, True, "false switches everything off: no patch, no thread, no file"
    )
    directory: Path = _setting(
        "OTEL_RL_DIR", expanded_path, Path("otel_rl_runs"), "root of the run directories; `~` and `$NAME` are expanded"
    )
    run_id: str = _setting("OTEL_RL_RUN_ID", str, "", "the run's name; made from date, time and chance when absent")
    attempt_id: str = _setting(
        "OTEL_RL_ATTEMPT_ID",
        _attempt,
        "",
        "the attempt's id, from a launcher that gives all ranks the same one and each start another; rank 0 makes it "
        "when absent",
    )
    integrations: tuple[str, ...] = _setting(
        "OTEL_RL_INTEGRATIONS",
        _names,
        ("auto",),
        "what to instrument, with commas between; `auto`: whatever gets imported",
    )
    journal_max_bytes: int = _setting(
        "OTEL_RL_JOURNAL_MAX_BYTES",
        _cap,
        4096 * MIB,
        "size cap of one process's journal, at least 8 MiB; the oldest spans go first",
    )
    capture_content: bool = _setting(
        "OTEL_RL_CAPTURE_CONTENT", _boolean, False, "true records texts of exceptions and stack traces"
    )
    attribute_length: int = _setting(
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", _positive, 2048, "longer attribute values are cut, characters"
    )
    request_spans: int = _setting(
        "OTEL_RL_REQUEST_SPANS",
        _count,
        256,
        "rollout requests of a step that become spans on one process, at most; 0: none",
    )
    request_failures: int = _setting(
        "OTEL_RL_REQUEST_FAILURES", _count, 64, "of them errors, aborts and timeouts of a rollout, at most"
    )
    request_extremes: int = _setting(
        "OTEL_RL_REQUEST_EXTREMES",
        _count,
        8,
        "of them the slowest of a rollout by duration, as many by TTFT, and as many of the longest outputs",
    )
    request_sample: int = _setting(
        "OTEL_RL_REQUEST_SAMPLE", _count, 32, "of them a uniform sample of a rollout, chosen by a hash of step and id"
    )
    sidecar: bool = _setting(
        "OTEL_RL_SIDECAR",
        _boolean,
        True,
        "false: no process is started that sends the records; run `otel-rl sidecar RUN` yourself, once per node",
    )
    peak_flops: float = _setting(
        "OTEL_RL_PEAK_FLOPS",
        _rate,
        0.0,
        "peak of one device that MFU divides by, FLOP/s (`989e12`); 0: the published one of the device, if it is known",
    )
    backends: str = _setting(
        "OTEL_RL_BACKENDS",
        expanded,
        "",
        "folder with the programs that `otel-rl stack` starts, before all other places",
    )
    tempo: str = _setting(
        "OTEL_RL_TEMPO_PROGRAM",
        expanded,
        "",
        "the Tempo program that `otel-rl stack` starts; else the `tempo` on PATH",
    )
    join_spans: bool = _setting(
        "OTEL_RL_JOIN_SPANS",
        _boolean,
        False,
        "true: spans of the program's own tracer provider nest below our stages, which changes their parents, trace "
        "ids and sampling",
    )
    service_name: str = _setting("OTEL_SERVICE_NAME", str, "", "`service.name`; `<system>-<role>` when absent")
    resource_attributes: tuple[tuple[str, str], ...] = _setting(
        "OTEL_RESOURCE_ATTRIBUTES", _pairs, (), "further attributes of the resource"
    )
    sampler: str = _setting("OTEL_TRACES_SAMPLER", _sampler, "always_on", "decides per step, the same on every rank")
    sampler_ratio: float = _setting("OTEL_TRACES_SAMPLER_ARG", _ratio, 1.0, "share of the steps for traceidratio")
    histograms: str = _setting(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        _histograms,
        EXPONENTIAL,
        "`explicit_bucket_histogram`: histograms with few boundaries, for a store that takes no exponential ones",
    )
    disabled: bool = _setting(
        "OTEL_SDK_DISABLED", standard_boolean, False, "the standard switch; true is OTEL_RL_ENABLED=false"
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Read the settings. A variable of OpenTelemetry that has a value that it cannot have counts as not set.

        Raises:
            ConfigurationError: an ``OTEL_RL_`` variable has a value that it cannot have.
        """
        wrong = not_possible(PARSERS, environ)
        for variable, allowed in wrong.items():
            if variable.startswith(PREFIX):
                text = environ[variable].strip()
                raise ConfigurationError(f"{variable}={text!r} is not possible: it takes {allowed}")
        values: dict[str, Any] = {}
        for row in fields(cls):
            text = environ.get(row.metadata["variable"], "").strip()
            if text and row.metadata["variable"] not in wrong:
                values[row.name] = row.metadata["parse"](text)
        return cls(**values)

    @property
    def is_exponential(self) -> bool:
        """Whether histograms are exponential."""
        return self.histograms == EXPONENTIAL

    @property
    def service(self) -> str:
        """``service.name`` as the user wants it, by OpenTelemetry's precedence; empty where the user does not say."""
        return self.service_name or dict(self.resource_attributes).get(SERVICE_NAME, "")

    @property
    def active(self) -> bool:
        """Whether to record at all."""
        return self.enabled and not self.disabled


PARSERS: dict[str, Callable[[str], Any]] = {row.metadata["variable"]: row.metadata["parse"] for row in fields(Config)}
"""How each setting is read."""
LOADS_SDK = "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
"""The SDK reads it when it is imported, and the import fails where it is no number."""
LIMITS = {
    "OTEL_ATTRIBUTE_COUNT_LIMIT": "max_attributes",
    LOADS_SDK: "max_span_attributes",
    "OTEL_SPAN_EVENT_COUNT_LIMIT": "max_events",
    "OTEL_SPAN_LINK_COUNT_LIMIT": "max_links",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT": "max_event_attributes",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT": "max_link_attributes",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "max_span_attribute_length",
}
"""What the SDK reads for the spans of other libraries, with the argument of ``SpanLimits`` that overrides it."""


CONTEXT = "OTEL_PYTHON_CONTEXT"
"""OpenTelemetry's API reads it when it is imported."""


def _context(text: str) -> str:
    from importlib.metadata import entry_points

    if not entry_points(group="opentelemetry_context", name=text):
        raise ValueError("the name of a context that is installed")
    return text


def _import_context() -> None:
    """Import the API's context without the traceback that it logs for one that is not installed: ours is one line."""
    logger = logging.getLogger("opentelemetry.context")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        importlib.import_module("opentelemetry.context")
    finally:
        logger.disabled = was_disabled


if CONTEXT in os.environ:
    _import_context()


def not_possible(parsers: Mapping[str, Callable[[str], Any]], environ: Mapping[str, str]) -> dict[str, str]:
    """Return each variable that has a value that it cannot have, with what it takes."""
    found = {}
    for variable, parse in parsers.items():
        text = environ.get(variable, "").strip()
        try:
            if text:
                parse(text)
        except ValueError as error:
            found[variable] = str(error)
    return found


def ignored(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return each variable of OpenTelemetry whose value is ignored, with what it takes and what is done without it.

    It may be meant for another program: OpenTelemetry wants a warning and the default.
    """
    wrong = not_possible(PARSERS | dict.fromkeys(LIMITS, _limit) | {CONTEXT: _context}, environ)
    return {
        variable: f"it takes {allowed}; {WITHOUT_SDK if variable == LOADS_SDK else 'its default is used'}"
        for variable, allowed in wrong.items()
        if not variable.startswith(PREFIX)
    }


def root(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the root of the runs, which is all that readers need: another setting may be wrong."""
    text = environ.get("OTEL_RL_DIR", "").strip()
    return expanded_path(text) if text else Config().directory


@dataclass(frozen=True)
class Setting:
    """One setting with its value and where the value came from."""

    variable: str
    value: str
    source: str
    meaning: str


def settings(environ: Mapping[str, str] = os.environ) -> list[Setting]:
    """List every setting; a value that is not possible is shown with what is wrong with it, or is ignored."""
    rows = []
    wrong = not_possible(PARSERS, environ)
    for row in fields(Config):
        variable = row.metadata["variable"]
        text = environ.get(variable, "").strip()
        source = "environment" if text else "default"
        if variable in wrong:
            is_ours = variable.startswith(PREFIX)
            source = f"not possible: it takes {wrong[variable]}" if is_ours else "default"
            text = text if is_ours else ""
        default = ",".join(row.default) if isinstance(row.default, tuple) else str(row.default)
        rows.append(Setting(variable, text or default, source, row.metadata["meaning"]))
    return rows


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """List each ``OTEL_RL_*`` variable that nobody reads, with the nearest of ours that exists (or nothing)."""
    variables = [row.metadata["variable"] for row in fields(Config)]
    known = [name.removeprefix(PREFIX) for name in variables if name.startswith(PREFIX)]
    ours = {name for name in environ if name.startswith(PREFIX)} - OF_COLLECTOR - {LAUNCH}
    strangers = sorted(name for name in ours if name.removeprefix(PREFIX) not in known)
    nearest = [difflib.get_close_matches(name.removeprefix(PREFIX), known, 1) for name in strangers]
    return [(name, PREFIX + near[0] if near else "") for name, near in zip(strangers, nearest, strict=True)]


def may_be_key(text: str) -> bool:
    """Say whether a value is rather a certificate or a key than the path of one: such are never shown."""
    return "BEGIN" in text or "\n" in text or len(text) > LONGEST_SHOWN
