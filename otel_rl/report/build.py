"""Build the report of a run, section by section."""

from __future__ import annotations

from typing import Any, Final

from otel_rl.journal.read import Run
from otel_rl.report.data.report import FORMAT, Report
from otel_rl.report.section import Section
from otel_rl.report.sections.caveats import CAVEATS, DISAGREEMENTS, FAILURES, UNSEEN_STEPS
from otel_rl.report.sections.flops_rates import FLOPS
from otel_rl.report.sections.header import HEADER, VERDICT
from otel_rl.report.sections.ledger_faults import LEDGER
from otel_rl.report.sections.memory_use import MEMORY, MEMORY_PARTS
from otel_rl.report.sections.open_now import HANGING, OPEN_STAGES, PENDING
from otel_rl.report.sections.rank_activity import RANKS, WORK
from otel_rl.report.sections.request_times import REQUESTS
from otel_rl.report.sections.stage_ranks import COLLECTIVES, OWN_TIME
from otel_rl.report.sections.stage_shares import STAGES
from otel_rl.report.sections.step_series import NUMBERS, SERIES
from otel_rl.report.sections.wall_time import GOODPUT
from otel_rl.report.source import Points, Source

SECTIONS: Final[tuple[Section, ...]] = (
    HEADER, HANGING, VERDICT, FAILURES, LEDGER, UNSEEN_STEPS, DISAGREEMENTS, OPEN_STAGES, PENDING, STAGES, OWN_TIME,
    RANKS, COLLECTIVES, GOODPUT, FLOPS, REQUESTS, SERIES, NUMBERS, WORK, MEMORY, MEMORY_PARTS, CAVEATS,
)  # fmt: skip


def build_report(run: Run, now_ns: int, points: Points | None = None) -> Report:
    """Make the report of a run, which may be running; what is alive, and its open stages, last until now."""
    source = Source(run, now_ns, points)
    made: dict[str, Any] = {name: make(source) for section in SECTIONS for name, make in section.data.items()}
    return Report(format=FORMAT, **made)
