"""The stages: what share of the step time each takes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.analysis.stages import Path, StageTimes
from otel_rl.analysis.summary import summarize
from otel_rl.report.data.report import Report, StageRow
from otel_rl.report.fold.folded_spans import StepRecord
from otel_rl.report.read.average import Averaged
from otel_rl.report.section import Block, Column, Picture, Section, Table, more, notes
from otel_rl.runs.format import count, listed, percent, plural, seconds

NESTED_SHARE: Final = 0.005
"""Stages inside others have a row from this share of the step time; reward functions as stages of their own."""
LEAST_SHARE: Final = 0.001
"""If more than ``FEW`` stages take less of the step time, these are only counted."""
FEW: Final = 8
MOST_ROWS: Final = 40
LONGEST_BAR: Final = 24
LEAST_BAR: Final = 0.03
EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def stage_rows(averaged: Averaged) -> list[StageRow]:
    """Make one row per stage, largest share first, the stages inside it right below it, `rl.other` at the end."""
    paths = {path for record in averaged.steady for path in record.stages}
    rows = {path: _row(averaged, path, averaged.steps_with(path)) for path in paths}
    ordered = sorted(paths, key=lambda path: _order(rows, path))
    other = [_row(averaged, (v.OTHER,), averaged.other())] if averaged.time_ns else []
    return [rows[path] for path in ordered] + other


def explained(stages: Sequence[StageRow], of_ranks: Sequence[StageRow]) -> list[StageRow]:
    """Put what ranks do inside the stages of their driver below these: collectives, and stages of theirs."""
    known = {row.stage: row for row in of_ranks if row.inside is None}
    inside: dict[str, list[StageRow]] = {}
    for row in of_ranks:
        if row.inside is not None:
            inside.setdefault(row.inside, []).append(row)
    rows: list[StageRow] = []
    for row in stages:
        called = known.get(row.stage) if row.inside is None and row.stage != v.OTHER else None
        rows.append(row if called is None else _with_calls(row, called))
        if called is not None:
            rows += inside.get(row.stage, ())
    return rows


def _with_calls(row: StageRow, called: StageRow) -> StageRow:
    comm_share = called.comm_share * called.share / row.share if row.share else 0.0
    return replace(
        row,
        comm_share=min(1.0, comm_share),
        is_comm_hidden=called.is_comm_hidden,
        is_host_clock=called.is_host_clock,
        is_device_clock=False,
    )


def _order(rows: dict[Path, StageRow], path: Path) -> tuple[tuple[float, str], ...]:
    return tuple((-rows[path[: depth + 1]].share, path[depth]) for depth in range(len(path)))


def _row(averaged: Averaged, path: Path, steps: Iterable[tuple[StepRecord, StageTimes]]) -> StageRow:
    times = array("d")
    busy_ns = comm_ns = 0
    per_rank_ns = 0.0
    is_hidden = is_host = False
    is_device = True
    for record, part in steps:
        times.extend([ns / 1e9 for ns in part.durations_ns])
        busy_ns += part.busy_ns
        comm_ns += part.comm.time_ns
        per_rank_ns += part.busy_ns / averaged.num_ranks[record.attempt]
        is_hidden |= part.is_hidden
        is_host |= part.is_host_clock
        is_device &= part.is_device_clock
    durations = summarize(times)
    return StageRow(
        stage=path[-1],
        inside=path[-2] if len(path) > 1 else None,
        calls=durations.count,
        share=busy_ns / averaged.time_ns if averaged.time_ns else 0.0,
        median_s=durations.median,
        p95_s=durations.p95,
        total_s=per_rank_ns / 1e9,
        comm_share=comm_ns / busy_ns if busy_ns else 0.0,
        is_comm_hidden=is_hidden,
        is_host_clock=is_host,
        is_device_clock=is_device and durations.count > 0,
    )


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
            Picture(partial(share_bar, row, largest)),
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


def share_bar(row: StageRow, largest: float, width: int) -> str:
    """Draw the share of a stage in the step; none for a stage inside another, or for a small one."""
    return "" if row.inside or row.share < LEAST_BAR else bar(row.share / largest, width)


def bar(share: float, width: int) -> str:
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


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


STAGES: Final = Section(title="Stages", data={"stages": lambda source: source.stages}, blocks=_blocks)
