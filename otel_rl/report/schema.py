"""The report as JSON, and its schema: `python -m otel_rl.report.schema > docs/report.schema.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from types import ModuleType
from typing import Any

from otel_rl.report.data import details, finding, ranks, report, rule_settings, time_use


def to_json(made: Any, indent: int | None = 2) -> str:
    """Write a report, or another dataclass, as JSON, in ASCII; numbers that JSON cannot say (NaN) are null already."""
    return json.dumps(asdict(made), indent=indent, allow_nan=False)


def schema() -> dict[str, Any]:
    """Make the schema of a report."""
    modules = (details, finding, ranks, report, rule_settings, time_use)
    return schema_of(report.Report, modules, f"{report.FORMAT}: what `otel-rl report RUN --json` prints")


def schema_of(kind: type, modules: Iterable[ModuleType], title: str) -> dict[str, Any]:
    """Make a schema, with the docstrings of the classes and fields; needs pydantic, which only development has."""
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
    for one in (one for module in modules for one in vars(module).values()):
        if isinstance(one, type) and is_dataclass(one):
            one.__pydantic_config__ = config  # type: ignore[attr-defined]
    document = TypeAdapter(kind).json_schema(mode="serialization")
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = title
    return document


def schema_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text(schema()))
