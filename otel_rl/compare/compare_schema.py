"""The schema of a comparison: `python -m otel_rl.compare.compare_schema > docs/compare.schema.json`."""

from __future__ import annotations

import sys
from typing import Any

from otel_rl.compare import data
from otel_rl.report.data import finding, ranks
from otel_rl.report.schema import schema_of, schema_text


def comparison_schema() -> dict[str, Any]:
    return schema_of(
        data.Comparison, (data, finding, ranks), f"{data.FORMAT}: what `otel-rl compare A B --json` prints"
    )


if __name__ == "__main__":
    sys.stdout.write(schema_text(comparison_schema()))
