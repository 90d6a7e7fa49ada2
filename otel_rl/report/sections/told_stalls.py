"""The stalls that were found while a run went on, and how they ended."""

from __future__ import annotations

from typing import Final

from otel_rl.report.data.report import Report
from otel_rl.report.section import Block, Line, Section


def _lines(report: Report) -> list[Block]:
    return [Line(row.chain, "" if row.is_over else "warning") for row in report.stalls]


STALLS: Final = Section(title="Stalls", blocks=_lines)
