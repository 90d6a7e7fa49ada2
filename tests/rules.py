"""What the rules ask Prometheus for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from otel_rl.vocabulary import METRICS, STAGES

COLLECTOR = Path(__file__).parents[1] / "collector"
RULES = COLLECTOR / "rules" / "otel_rl.rules.yaml"
UNITS = {"s": "seconds", "By": "bytes", "J": "joules", "W": "watts", "Cel": "celsius", "Hz": "hertz",
         "{token}/s": "per_second", "{sample}/s": "per_second"}  # fmt: skip
OF_HISTOGRAM = ("", "bucket", "count", "sum")
"""Native, and the series of a classic one."""
IN_RANGE = re.compile(r"\b((?:rl|hw)_[a-z0-9_]+)(?:\{[^}]*\})?\)?\[")
"""A series of ours is asked for over a range."""
LABEL = re.compile(r"\b(?:rl|hw)_[a-z0-9_]+\b")
RECORDED = re.compile(r"[a-z]+:rl_[a-z_]+:\w+")
"""What a recording rule makes."""


def rules() -> list[dict[str, Any]]:
    """Every rule, of which some record and some alert."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def recording() -> list[dict[str, Any]]:
    """Those that record."""
    return [rule for rule in rules() if "record" in rule]


def alerts() -> list[dict[str, Any]]:
    """Those that alert."""
    return [rule for rule in rules() if "alert" in rule]


def series_of_rules() -> dict[str, set[str]]:
    """Which series the rules read, and the labels that they must have."""
    found: dict[str, set[str]] = {}
    for rule in rules():
        names = {*IN_RANGE.findall(rule["expr"])}
        for name in names:
            labels = {text for text in LABEL.findall(RECORDED.sub("", rule["expr"]))} - names
            found.setdefault(name, set()).update(labels)
    return found


def series_names() -> set[str]:
    """Names that Prometheus gives to the metrics of the vocabulary, with the suffixes of units and kinds."""
    names = set()
    for row in METRICS.values():
        words = row.name.replace(".", "_")
        unit = UNITS.get(row.unit, "")
        if row.unit == "1" and row.kind == "gauge":
            words, unit = "_".join(word for word in words.split("_") if word != "ratio"), "ratio"
        whole = "_".join(filter(None, (words, unit)))
        kinds = {"counter": ("total",), "histogram": OF_HISTOGRAM, "gauge": ("",)}[row.kind]
        names |= {"_".join(filter(None, (whole, kind))) for kind in kinds}
    durations = [stage.duration.replace(".", "_") for stage in STAGES.values() if stage.duration]
    return names | {f"{name}_seconds_{kind}".rstrip("_") for name in durations for kind in OF_HISTOGRAM}
