"""What the rules ask Prometheus for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

COLLECTOR = Path(__file__).parents[1] / "collector"
RULES = COLLECTOR / "rules" / "otel_rl.rules.yaml"
IN_RANGE = re.compile(r"\b((?:rl|hw)_[a-z0-9_]+)(?:\{[^}]*\})?\)?\[")
"""A series of ours is asked for over a range."""
LABEL = re.compile(r"\b(?:rl|hw)_[a-z0-9_]+\b")
RECORDED = re.compile(r"[a-z]+:(?:otel_)?rl_[a-z_]+:\w+")
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
