"""Wall clocks that were set during the run: what is told from durations does not depend on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from otel_rl.report.data.report import ClockSet, Rank, Report
from otel_rl.report.format import listed, seconds
from otel_rl.report.read.collect import StepRecord
from otel_rl.report.terminal.style import attempt_name, rank_name


def clock_rows(records: Iterable[StepRecord]) -> list[ClockSet]:
    """Find by how much the clock of each rank was set before which step.

    Args:
        records: all steps, in order of their begins.
    """
    rows: list[ClockSet] = []
    known_ns: defaultdict[tuple[str, Rank], int] = defaultdict(int)
    for record in records:
        by_ns = record.clock_set_ns - known_ns[record.attempt, record.rank]
        if by_ns:
            known_ns[record.attempt, record.rank] = record.clock_set_ns
            rows.append(
                ClockSet(
                    attempt=record.attempt,
                    rank=record.rank,
                    loop=record.step.loop,
                    step=record.step.iteration,
                    by_s=by_ns / 1e9,
                )
            )
    return rows


def clock_lines(report: Report) -> list[str]:
    """Say in one line whose clock was set by how much; none where no clock was."""
    ranks: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(report.clocks_set, key=lambda row: row.rank):
        way = "forward" if row.by_s > 0 else "back"
        loop = "" if row.loop == "train" else f" of {row.loop}"
        when = f"before step {row.step}{loop}{attempt_name(report, row.attempt)}"
        ranks[f"{way} by {seconds(abs(row.by_s))} {when}"].append(rank_name(report, row.rank.role, row.rank.rank))
    times = [f"that of {listed(names)} {what}" for what, names in ranks.items()]
    return [f"Wall clocks were set: {listed(times)}; durations do not depend on that."] if times else []
