"""The stages: what share of the step time each takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Report, StageRow
from otel_rl.report.section import Bar, Block, Column, Section, Table, more, notes
from otel_rl.runs.format import count, listed, percent, plural, seconds

NESTED_SHARE: Final = 0.005
"""Stages inside others have a row from this share of the step time; reward functions as stages of their own."""
LEAST_SHARE: Final = 0.001
"""If more than ``FEW`` stages take less of the step time, these are only counted."""
FEW: Final = 8
MOST_ROWS: Final = 40
LONGEST_BAR: Final = 24
LEAST_BAR: Final = 0.03


def _blocks(report: Report) -> list[Block]:
    if not report.stages:
        return []
    heads = ("share", "calls", "median", "p95", "total")
    bars = Column("", "picture", LONGEST_BAR)
    table = Table([Column("stage", "name"), bars, *map(Column, heads)])
    largest = max(row.share for row in report.stages)
    rows = [row for row in report.stages if row.inside in (None, v.REWARD) or row.share >= NESTED_SHARE]
    shown, left = _fold(rows)
    for row in shown:
        table.add(
            f"  {row.stage}" if row.inside else row.stage,
            share_bar(row, largest),
            percent(row.share),
            count(row.calls),
            seconds(row.median_s),
            seconds(row.p95_s),
            seconds(row.total_s),
            severity="note" if row.inside or row.stage == v.OTHER else "",
        )
    lines = more(len(left), _how_small(left)) if left else []
    return [table, *lines, *notes(*_notes(report, len(report.stages) - len(rows)))]


def _fold(rows: Sequence[StageRow]) -> tuple[list[StageRow], list[StageRow]]:
    """Split rows into those that are shown and those that are only counted; names may be one per sample."""
    by_share = sorted((row for row in rows if row.stage != v.OTHER), key=lambda row: -row.share)
    large = sum(row.share >= LEAST_SHARE for row in by_share)
    kept = min(MOST_ROWS, len(by_share) if len(by_share) - large <= FEW else large)
    folded = {(row.inside, row.stage) for row in by_share[kept:]}
    shown: list[StageRow] = []
    left: list[StageRow] = []
    for row in rows:
        is_left = (row.inside, row.stage) in folded or (None, row.inside) in folded
        (left if is_left else shown).append(row)
    return shown, left


def _how_small(folded: Sequence[StageRow]) -> str:
    largest = max(row.share for row in folded)
    each = f" below {percent(LEAST_SHARE)}" if largest < LEAST_SHARE else f", each at most {percent(largest)}"
    stages = {row.stage for row in folded if row.inside is None}
    together = sum(row.share for row in folded if row.inside not in stages)
    return f"{each}, together {percent(together)}" if len(folded) > 1 else each


def share_bar(row: StageRow, largest: float) -> Bar:
    """Return the share of a stage in the step; none for a stage inside another, or for a small one."""
    return Bar(None if row.inside or row.share < LEAST_BAR else row.share / largest)


def _notes(report: Report, nested: int) -> list[str]:
    steps = report.steps
    text = f"{plural(steps.averaged, 'step')}: median {seconds(steps.median_s)}, p95 {seconds(steps.p95_s)}"
    if steps.warmup:
        text += f", without the first{f' {steps.warmup}' if steps.warmup > 1 else ''} after set-up"
    facts = ["Calls: all ranks; total: their mean"] if len(report.ranks) > 1 else []
    if nested:
        facts.append(f"{plural(nested, 'nested row')} below {percent(NESTED_SHARE)} left out")
    lines = [f"{text}.", f"{'; '.join(facts)}." if facts else ""]
    if timed := list(dict.fromkeys(row.stage for row in report.stages if row.is_device_clock)):
        lines.append(f"{listed(timed)}: the device's times; where the host waits for it they count again.")
    return lines


STAGES: Final = Section(title="Stages", blocks=_blocks)
