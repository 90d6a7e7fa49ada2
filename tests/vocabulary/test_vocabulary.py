"""Tests of the names."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from pkgutil import iter_modules

import pytest

import otel_rl
from otel_rl import vocabulary
from otel_rl.vocabulary import (
    ATTRIBUTES,
    DEFINITIONS,
    EVENTS,
    EXECUTE_TOOL,
    METRICS,
    SHORT_NAMES,
    STAGES,
    Attribute,
    Metric,
)

PACKAGE = Path(otel_rl.__file__).parent
UNITS = {"", "s", "By", "1", "nat", "Cel", "Hz", "J", "W"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent.name != "vocabulary")
NAMES = {*ATTRIBUTES, *METRICS, *EVENTS, *STAGES} - {"rl.train", "rl.rank"}
"""All names but two that are a beginning of others."""


def test_no_name_is_there_twice() -> None:
    """Within its kind; a metric and a span may be called alike."""
    kinds = (ATTRIBUTES, METRICS, EVENTS, STAGES)
    assert len(DEFINITIONS) == sum(len(kind) for kind in kinds)


def test_no_file_hides_a_name_of_another() -> None:
    """``vocabulary.NAME`` means one thing, in whichever file it is spelled."""
    modules = [
        importlib.import_module(f"{vocabulary.__name__}.{found.name}") for found in iter_modules(vocabulary.__path__)
    ]
    meant = {(name, str(value)) for module in modules for name, value in vars(module).items() if name.isupper()}
    assert len({name for name, _ in meant}) == len(meant)


@pytest.mark.parametrize("row", DEFINITIONS, ids=lambda row: getattr(row, "key", None) or row.name)
def test_a_row_is_complete(row: object) -> None:
    """A name that OpenTelemetry accepts, a meaning, a source."""
    name = row.key if isinstance(row, Attribute) else row.name  # type: ignore[attr-defined]
    assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", name) or name == EXECUTE_TOOL
    assert row.meaning and row.source  # type: ignore[attr-defined]


@pytest.mark.parametrize("row", [row for row in DEFINITIONS if isinstance(row, Metric)], ids=lambda row: row.name)
def test_a_metric_has_a_ucum_unit_and_its_boundaries(row: Metric) -> None:
    """Boundaries rise, and only histograms have them."""
    unit, _, per = row.unit.partition("/")
    assert unit in UNITS or re.fullmatch(r"\{[a-z]+\}", unit)
    assert per in {"", "s"}
    assert (row.kind == "histogram") == bool(row.boundaries)
    assert list(row.boundaries) == sorted(set(row.boundaries))


@pytest.mark.parametrize("row", [row for row in DEFINITIONS if isinstance(row, Metric)], ids=lambda row: row.name)
def test_the_unit_1_is_that_of_ratios_alone(row: Metric) -> None:
    """Prometheus writes ``_ratio`` behind its gauges; a count is one of things, and a plain number has no unit."""
    is_share = "share of " in row.meaning or " / " in row.meaning
    assert (row.unit == "1") == (is_share and row.kind == "gauge")
    assert row.kind != "counter" or row.unit in {"s", "By", "J"} or row.unit.startswith("{")


def test_durations_span_what_rl_needs() -> None:
    """A millisecond to hours."""
    assert (0.001, 10_000.0) == (vocabulary.DURATION_BOUNDARIES[0], vocabulary.DURATION_BOUNDARIES[-1])


def test_short_names_are_the_stages_without_their_prefix() -> None:
    """And none hides another; that of the GenAI conventions has no prefix."""
    assert set(STAGES) - {EXECUTE_TOOL} == set(SHORT_NAMES.values())
    assert all(name == f"rl.{short}" for short, name in SHORT_NAMES.items())


def test_a_stage_has_its_histogram() -> None:
    """Named after it, and no other metric's name; what no span or another histogram says has none."""
    durations = {stage.duration for stage in STAGES.values() if stage.duration}
    named = {f"{stage.name}.duration" for stage in STAGES.values() if stage.is_measured}
    assert named - {f"{EXECUTE_TOOL}.duration"} | {f"gen_ai.{EXECUTE_TOOL}.duration"} == durations
    assert set() == durations & set(METRICS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_name_is_spelled_in_the_vocabulary_only(path: Path) -> None:
    """Elsewhere it is a constant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    spelled = [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in NAMES and id(node) not in documented
    ]
    assert [] == spelled
