"""The JSON schema of a report, made from its classes: `python -m otel_rl.report.schema > docs/report.schema.json`."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from itertools import pairwise
from typing import Any

from otel_rl.report.data import details, ranks, report, time_use


def schema() -> dict[str, Any]:
    """Make the schema, with the docstrings of the classes and fields; needs pydantic, which only development has."""
    from pydantic import TypeAdapter

    document = TypeAdapter(report.Report).json_schema(mode="serialization")
    _describe(document, report.Report)
    kinds = vars(ranks) | vars(report) | vars(details) | vars(time_use)
    for name, node in document["$defs"].items():
        _describe(node, kinds[name])
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = f"{report.FORMAT}: what `otel-rl report RUN --json` prints"
    return document


def schema_text() -> str:
    """Write the schema as docs/report.schema.json holds it."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _describe(node: dict[str, Any], kind: type) -> None:
    """Give the fields of an object the docstrings that stand below them in the source."""
    for name, text in _field_docstrings(kind).items():
        node["properties"][name]["description"] = text


def _field_docstrings(kind: type) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(kind))
    pairs = pairwise(node for outer in ast.walk(tree) if isinstance(outer, ast.ClassDef) for node in outer.body)
    return {
        field.target.id: str(below.value.value)
        for field, below in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


if __name__ == "__main__":
    sys.stdout.write(schema_text())
