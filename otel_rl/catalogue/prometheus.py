"""The reference of the series in Prometheus, as Markdown; ``python -m otel_rl.catalogue`` writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from otel_rl.catalogue.areas import AREAS, Area
from otel_rl.catalogue.markdown import code, section
from otel_rl.catalogue.questions import QUESTIONS, expressions
from otel_rl.catalogue.series_names import emitted, label_name, series_name, series_of
from otel_rl.vocabulary import ATTRIBUTES, METRICS

CONFIGURATION: Final = Path(__file__).parents[2] / "collector" / "prometheus.yaml"
PREAMBLE: Final = """\
# The series in Prometheus

Made from `otel_rl/vocabulary/` and `otel_rl/catalogue/` by `python -m otel_rl.catalogue`; do not edit by hand.
Tests compare the names with a real Prometheus 3.15, and ask it every question below.

Prometheus takes OTLP with `translation_strategy: UnderscoreEscapingWithSuffixes`: dots become underscores, the unit
becomes a suffix (`_seconds`, `_bytes`, `_ratio`), counters end in `_total`. Units in braces (`{token}`) leave none.
A **histogram** is one series, a native histogram: `histogram_quantile(0.99, sum by (...) (rate(x[5m])))`,
`histogram_count(x)`, `histogram_sum(x)`. If your store has only classic histograms, write `x_bucket` with `le` in the
`by`, `x_count`, `x_sum`.

A **gauge** has one point per step, so ask for a range: `last_over_time(x[30m])`, `quantile_over_time(0.5, x[30m])`.
A **counter** appears when it first counts, and `rate()` and `increase()` miss that first value. For rare events
compare `last_over_time(x[1d])` at two times instead.

An **empty answer** means that nothing of the kind was recorded in the range. There are no devices without a GPU that
the sidecar can read, no MFU without a known peak, and no queue if the engine does not report it.
"""
ELSEWHERE: Final = """\
## Other series

| series | from | labels |
| --- | --- | --- |
| `user_*` | `otel_rl.record(name, value)`, one point per call | none, or `rl_metric_name` if Prometheus changes the name |
| `trl_*` | TRL's own numbers, one point per step | `rl_scope`, `rl_mode` |
| `verl_*` | verl's own numbers, one point per step ([what they mean](verl.md)) | `rl_scope`, `rl_mode` |
| `roll_*` | ROLL's own numbers, one point per step; times and memory around loading from each rank ([what they mean](roll.md)) | `rl_scope`, `rl_mode` |
| `openrlhf_*`, `slime_*`, `miles_*`, `nemo_rl_*`, `prime_rl_*` | numbers of that framework's own, one point each time it logs | `rl_scope`, `rl_mode` |
| `otelcol_*` | every Collector, about itself: records received, refused, queued, sent and filtered | `host_name`, `exporter`, `receiver`, `filter` |
| `system_*` with other names than above | the agent's `host_metrics` receiver | `host_name` and those of the receiver |
| `DCGM_*`, `vllm:*`, `sglang:*` and others | exporters that the agent scrapes, under their own names | `host_name`, `job` and their own |
| `rank:*`, `role:*`, `run:*` | the recording rules in [collector/rules](../collector/rules/otel_rl.rules.yaml) | those in the `by` of the rule |
| `target_info` | Prometheus: the other resource attributes | `job`, `instance` and those |
"""  # noqa: E501  a row of a table is one line


def render() -> str:
    return "\n".join([PREAMBLE, questions(), labels(), *map(table, AREAS), ELSEWHERE])


def questions() -> str:
    lines = ["## Twenty questions", ""]
    for number, question in enumerate(QUESTIONS, 1):
        lines += [f"### {number}. {question.text}", ""]
        for query in expressions(question):
            lines += ["```promql", query, "```"]
        lines += ["", question.answer, ""]
    return "\n".join(lines)


def labels() -> str:
    rows = [
        (code("job"), "`service.name`"),
        (code("instance"), "`service.instance.id`"),
        *((code(label_name(key)), translated(ATTRIBUTES[key].meaning)) for key in promoted() if key in ATTRIBUTES),
    ]
    text = (
        "Every series has these, as far as its process has them. A sidecar's own series have no rank and no attempt. "
        "The tables below list further labels."
    )
    return section("Labels of the process", text, ("label", "meaning"), rows)


def promoted() -> list[str]:
    """Return the resource attributes that `prometheus.yaml` makes labels."""
    _, _, rest = CONFIGURATION.read_text("utf-8").partition("promote_resource_attributes:\n")
    listed = re.match(r"(?: +(?:- .*|#.*)\n)*", rest)
    return re.findall(r"^ +- ([\w.]+)", listed.group() if listed else "", re.MULTILINE)


def table(area: Area) -> str:
    series = ((emitted()[name], keys) for name, keys in area.attributes.items())
    rows = ((code(series_of(one)[0]), one.kind, listed(keys), translated(one.meaning)) for one, keys in series)
    text = f"{area.text} Every series has {listed(area.common)}." if area.common else area.text
    return section(area.title, text, ("series", "kind", "labels", "meaning"), rows)


def listed(keys: Sequence[str]) -> str:
    return ", ".join(code(label_name(key)) for key in keys)


def translated(meaning: str) -> str:
    """Return a meaning with the names of attributes and metrics as Prometheus writes them."""

    def replace(found: re.Match[str]) -> str:
        name = found.group(1)
        if name in ATTRIBUTES:
            return code(label_name(name))
        return code(series_name(METRICS[name])) if name in METRICS else found.group()

    return re.sub(r"`([\w.]+)`", replace, meaning)
