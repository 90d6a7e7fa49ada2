"""The report as JSON, and its schema: `python -m otel_rl.report.schema > docs/report.schema.json`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, is_dataclass
from typing import Any

from otel_rl.report.data import details, finding, ranks, report, rule_settings, time_use


def to_json(made: Any, indent: int | None = 2) -> str:
    """Write a report, or another dataclass, as JSON, in ASCII; numbers that JSON cannot say (NaN) are null already."""
    return json.dumps(asdict(made), indent=indent, allow_nan=False)


def schema() -> dict[str, Any]:
    """Make the schema, with the docstrings of the classes and fields; needs pydantic, which only development has."""
    from pydantic import ConfigDict, TypeAdapter

    config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)
    modules = (details, finding, ranks, report, rule_settings, time_use)
    for kind in (one for module in modules for one in vars(module).values()):
        if isinstance(kind, type) and is_dataclass(kind):
            kind.__pydantic_config__ = config  # type: ignore[attr-defined]
    document = TypeAdapter(report.Report).json_schema(mode="serialization")
    document["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    document["title"] = f"{report.FORMAT}: what `otel-rl report RUN --json` prints"
    return document


def schema_text() -> str:
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
