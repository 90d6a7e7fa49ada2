"""Tests of the page of series: up to date, complete, readable, and every query asks for what there is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from otel_rl import vocabulary as v
from otel_rl.catalogue import prometheus
from otel_rl.catalogue.areas import AREAS
from otel_rl.catalogue.questions import QUESTIONS, expressions
from otel_rl.catalogue.series_names import all_series, emitted, label_name, series_name
from tests.rules import RECORDED, recording

PAGE = Path(__file__).parents[2] / "docs" / "prometheus.md"
QUERIES = [query for question in QUESTIONS for query in expressions(question)]
OURS = re.compile(r"\b(?:rl|hw|gen_ai|system|otel_rl)_\w+")


def test_the_documented_page_is_the_rendered_one() -> None:
    """The file in docs/ is what vocabulary and questions say today."""
    assert prometheus.render() == PAGE.read_text(encoding="utf-8")


def test_every_metric_is_in_one_area() -> None:
    """None is left out, none is there twice, none is there that nothing emits."""
    assert Counter(emitted().keys()) == Counter(name for area in AREAS for name in area.attributes)


def test_labels_are_attributes_of_the_vocabulary() -> None:
    """Those of the tables, and those of the process, which are its resource."""
    keys = {key for area in AREAS for name in area.attributes for key in area.keys(name)}
    assert set() == keys - set(v.ATTRIBUTES)
    assert {"resource"} == {v.ATTRIBUTES[key].where for key in prometheus.promoted() if key in v.ATTRIBUTES}
    assert v.RUN_ID in prometheus.promoted()


@pytest.mark.parametrize(
    ("name", "kind", "unit", "series"),
    [
        ("rl.step.time", "gauge", "s", "rl_step_time_seconds"),
        ("rl.request.ratio", "gauge", "1", "rl_request_ratio"),
        ("rl.x.total.of", "counter", "1", "rl_x_of_total"),
        ("rl.flops.rate", "gauge", "{flop}/s", "rl_flops_rate_per_second"),
        ("hw.pcie", "gauge", "By/s", "hw_pcie_bytes_per_second"),
        ("rl.bytes.seen", "counter", "By", "rl_bytes_seen_total"),
        ("rl.train.entropy", "gauge", "nat", "rl_train_entropy_nat"),
        ("user.loss/policy__a", "gauge", "", "user_loss_policy_a"),
    ],
)  # fmt: skip
def test_names_are_translated(name: str, kind: str, unit: str, series: str) -> None:
    """As the page says; a backend test compares all of them with Prometheus's own."""
    assert series == series_name(v.Metric(name, kind, unit, ""))  # type: ignore[arg-type]


def test_there_are_twenty_questions() -> None:
    """Each one once."""
    assert 20 == len({question.text for question in QUESTIONS})


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_a_query_asks_for_what_there_is(query: str) -> None:
    """Its names are series and labels of the vocabulary, or made by a rule."""
    assert set() == set(RECORDED.findall(query)) - {rule["record"] for rule in recording()}
    names = set(OURS.findall(RECORDED.sub("", re.sub(r'"[^"]*"', "", query))))
    assert set() == names - all_series() - {label_name(key) for key in v.ATTRIBUTES}
