"""The reference of everything that otel_rl emits, as Markdown, made from vocabulary and settings."""

from __future__ import annotations

from typing import Final

from otel_rl.catalogue.markdown import code, section
from otel_rl.config import settings as all_settings
from otel_rl.metrics.naming import MOST_NAMES
from otel_rl.metrics.record import MAX_SERIES
from otel_rl.vocabulary import DEFINITIONS, NAMESPACES, SETTABLE, Attribute, Event, Metric, StageName

PREAMBLE: Final = f"""\
# What otel_rl emits

Made from `otel_rl/vocabulary/` and `config/` by `python -m otel_rl.catalogue`; do not edit by hand.

Units are UCUM: `s` seconds, `By` bytes, `1` a ratio, `{{token}}` a count of tokens; a plain number has none. Names with
another source than `otel_rl` are defined there and mean the same here.

A number that you record with `otel_rl.record("loss/policy", 0.5)` is the metric `user.loss/policy`, in Prometheus
`user_loss_policy`. A number of TRL without a name here is `trl.<name>`, one of verl `verl.<name>`, and so on;
[metrics.md](metrics.md) has those of TRL, verl and ROLL. If Prometheus writes two names alike, the points of the second
carry its name as `rl.metric.name`. `otel_rl.record` refuses names that begin with
{", ".join(f"`{name}`" for name in NAMESPACES)}, except these, which a loop without a framework sets itself:
{", ".join(f"`{name}`" for name in SETTABLE)}.

Name your own stages, metrics and attributes by kinds of work, never by samples: `otel_rl.stage("reward", sample=17)`,
not `otel_rl.stage("reward sample 17")`; `otel_rl.record("accuracy", 0.5)`, not one metric for each problem. Every name
makes series of its own in a metrics backend. A process keeps the first {MOST_NAMES:,} names of numbers and the first
{MAX_SERIES:,} sets of attributes of a metric, names of stages included. It drops the others, counts them
(`too_many_names`, `too_many_series`) and logs one line. The report does not list stages below 0.1 % of the step time.
Put what identifies a sample into the value of a span's attribute, not into its key.
"""
ATTRIBUTE_PLACES: Final = {
    "resource": ("Resource", "Of every span, metric point and log record of a process."),
    "span": ("Attributes of spans", ""),
    "metric": ("Attributes of metric points", ""),
    "log": ("Attributes of log records", ""),
}


def render() -> str:
    sections = [PREAMBLE, spans(), attributes("span"), metrics(), attributes("metric"), events(), attributes("log")]
    return "\n".join([*sections, attributes("resource"), settings()])


def spans() -> str:
    named = (one for one in DEFINITIONS if isinstance(one, StageName))
    rows = ((code(one.name), code(one.duration) if one.duration else "", one.meaning, one.source) for one in named)
    text = "The histogram beside a span counts the duration of every such span (`s`), sampled or not."
    return section("Spans", text, ("span", "histogram", "meaning", "source"), rows)


def metrics() -> str:
    named = (one for one in DEFINITIONS if isinstance(one, Metric))
    rows = ((code(one.name), one.kind, code(one.unit) if one.unit else "", one.meaning, one.source) for one in named)
    return section("Metrics", "", ("metric", "kind", "unit", "meaning", "source"), rows)


def events() -> str:
    rows = ((code(one.name), one.meaning, one.source) for one in DEFINITIONS if isinstance(one, Event))
    return section("Log records", "", ("event name", "meaning", "source"), rows)


def attributes(where: str) -> str:
    title, text = ATTRIBUTE_PLACES[where]
    named = (one for one in DEFINITIONS if isinstance(one, Attribute) and one.where == where)
    rows = ((code(one.key), one.type, one.meaning, one.source) for one in named)
    return section(title, text, ("attribute", "type", "meaning", "source"), rows)


def settings() -> str:
    rows = ((code(one.variable), code(one.value) if one.value else "", one.meaning) for one in all_settings({}))
    return section("Settings", "Environment variables that otel_rl reads.", ("variable", "default", "meaning"), rows)
