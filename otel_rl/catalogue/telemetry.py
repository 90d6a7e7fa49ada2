"""The reference of everything that otel_rl emits, as Markdown, made from vocabulary and settings.

``python -m otel_rl.catalogue`` writes ``docs/catalogue.md`` and ``docs/prometheus.md`` anew; tests compare both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from otel_rl.catalogue import prometheus
from otel_rl.catalogue.markdown import code, section
from otel_rl.config import settings as all_settings
from otel_rl.metrics.record import MAX_SERIES
from otel_rl.vocabulary import DEFINITIONS, NAMESPACES, SETTABLE, Attribute, Event, Metric, StageName

PREAMBLE: Final = f"""\
# What otel_rl emits

Made from `otel_rl/vocabulary/` and `config.py` by `python -m otel_rl.catalogue`; do not edit by hand.

Units are UCUM: `s` seconds, `By` bytes, `1` a ratio, `{{token}}` a count of tokens; a plain number has none. Sources
other than `otel_rl` are names that exist elsewhere and mean the same here.

A number that you record with `otel_rl.record("loss/policy", 0.5)` is the metric `user.loss/policy`, in Prometheus
`user_loss_policy`; one that TRL measures and that has no name here is `trl.<name>`. Where Prometheus writes two names
alike, the points of the second carry its name as `rl.metric.name`. `otel_rl.record` refuses names that begin with
{", ".join(f"`{name}`" for name in NAMESPACES)}, except these, which a loop without a framework sets itself:
{", ".join(f"`{name}`" for name in SETTABLE)}.

Name your own stages, metrics and attributes by kinds of work, never by samples: `otel_rl.stage("reward", sample=17)`,
not `otel_rl.stage("reward sample 17")`; `otel_rl.record("accuracy", 0.5)`, not one metric for each problem. Every name
makes series of its own in a metrics backend. Of one metric a process keeps the first {MAX_SERIES:,} sets of attributes
(names of stages are among them) and drops the others (`too_many_series`); the report only counts what takes less than
0.1 % of the step time. What tells samples apart is the value of a span's attribute, not its key.
"""
ATTRIBUTE_PLACES: Final = {
    "resource": ("Resource", "Of every span, metric point and log record of a process."),
    "span": ("Attributes of spans", ""),
    "metric": ("Attributes of metric points", ""),
    "log": ("Attributes of log records", ""),
}


def render() -> str:
    """Write the whole catalogue as Markdown."""
    sections = [PREAMBLE, spans(), attributes("span"), metrics(), attributes("metric"), events(), attributes("log")]
    return "\n".join([*sections, attributes("resource"), settings()])


def spans() -> str:
    """Write the section of span names."""
    rows = (
        (code(row.name), code(row.duration) if row.duration else "", row.meaning, row.source)
        for row in DEFINITIONS
        if isinstance(row, StageName)
    )
    return section(
        "Spans",
        "The histogram beside a span counts the duration of every such span (`s`), sampled or not.",
        ("span", "histogram", "meaning", "source"),
        rows,
    )


def metrics() -> str:
    """Write the section of metrics."""
    rows = (
        (code(row.name), row.kind, code(row.unit) if row.unit else "", row.meaning, row.source)
        for row in DEFINITIONS
        if isinstance(row, Metric)
    )
    return section("Metrics", "", ("metric", "kind", "unit", "meaning", "source"), rows)


def events() -> str:
    """Write the section of log records."""
    rows = ((code(row.name), row.meaning, row.source) for row in DEFINITIONS if isinstance(row, Event))
    return section("Log records", "", ("event name", "meaning", "source"), rows)


def attributes(where: str) -> str:
    """Write the section of attributes that belong to one place."""
    title, text = ATTRIBUTE_PLACES[where]
    rows = (
        (code(row.key), row.type, row.meaning, row.source)
        for row in DEFINITIONS
        if isinstance(row, Attribute) and row.where == where
    )
    return section(title, text, ("attribute", "type", "meaning", "source"), rows)


def settings() -> str:
    """Write the section of environment variables."""
    rows = ((code(row.variable), code(row.value) if row.value else "", row.meaning) for row in all_settings({}))
    return section("Settings", "Environment variables that otel_rl reads.", ("variable", "default", "meaning"), rows)


def main() -> None:
    """Write both pages."""
    docs = Path(__file__).parents[2] / "docs"
    (docs / "catalogue.md").write_text(render(), encoding="utf-8")
    (docs / "prometheus.md").write_text(prometheus.render(), encoding="utf-8")
