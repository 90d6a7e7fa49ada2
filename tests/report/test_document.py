"""The report as JSON, and its schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from otel_rl import vocabulary as v
from otel_rl.journal.read import open_run
from otel_rl.report.build import build_report
from otel_rl.report.schema import schema, schema_text, to_json
from tests.made_runs import BEGIN_NS, Plan, write_run

SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"


def test_the_documented_schema_is_that_of_the_code() -> None:
    """`python -m otel_rl.report.schema` writes it."""
    assert schema_text(schema()) == SCHEMA.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "plan",
    [
        Plan(slow_rank=1, nan_loss_step=3, dropped=5),
        Plan(killed_in=v.BACKWARD),
        Plan(steps=1, killed_in=v.SAMPLE),
        Plan(ranks=1, metrics=False),
    ],
    ids=["slow", "killed", "no step", "no metrics"],
)
def test_a_report_keeps_to_the_schema(tmp_path: Path, plan: Plan) -> None:
    """Every kind of run gives a valid document."""
    report = build_report(open_run(write_run(tmp_path, plan)), BEGIN_NS)
    jsonschema.validate(json.loads(to_json(report)), json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_every_field_is_always_there() -> None:
    """A script may rely on each key; what is not known is null or empty."""
    objects = [schema(), *schema()["$defs"].values()]
    assert [sorted(one["properties"]) for one in objects] == [sorted(one["required"]) for one in objects]


def test_fields_are_described() -> None:
    """The docstrings of the classes are the documentation of the document."""
    assert schema()["$defs"]["Rate"]["properties"]["wall"]["description"].startswith("What it was divided by")


def test_json_is_ascii(tmp_path: Path) -> None:
    """A C1 control character in a name reaches no terminal; who parses the JSON gets it back."""
    report = build_report(open_run(write_run(tmp_path, Plan(run_id="a\x9bb\x7f\u202e"))), BEGIN_NS)
    text = to_json(report)
    assert (True, False, report.run) == (text.isascii(), "\x7f" in text, json.loads(text)["run"])
