"""The report as JSON; `otel_rl.report.schema` describes it."""

from __future__ import annotations

import json
from dataclasses import asdict

from otel_rl.report.data.report import Report


def to_json(report: Report, indent: int | None = 2) -> str:
    """Write a report as JSON, in ASCII; numbers that JSON cannot say (NaN) are null already."""
    return json.dumps(asdict(report), indent=indent, allow_nan=False)
