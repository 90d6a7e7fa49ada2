"""Where the time of a step goes, in one table: stages, own times of the ranks, time between the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.ranks import Rank
from otel_rl.report.data.report import BalanceRow, Report, StageRow
from otel_rl.report.data.time_use import RankTime
from otel_rl.report.section import Block, Cell, Column, Line, Section, Table, cell, notes, rank_name
from otel_rl.report.sections.stage_ranks import MARK, times_of
from otel_rl.report.sections.stage_shares import LONGEST_BAR, share_bar
from otel_rl.runs.format import count, percent, plural, seconds

LEAST_SHARE: Final = 0.01
LEAST_OTHER: Final = 0.1
"""From this share of the step time on `rl.other` has a row."""
MOST_ROWS: Final = 9
MOST_RANKS: Final = 4
UNNAMED: Final = "in no stage"


def short(stage: str, inside: str | None = None) -> str:
    """Return the name of a stage without `rl.`, `train.` and the stage around it, as `judge` in `rl.reward judge`."""
    if inside and stage.startswith((f"{inside} ", f"{inside}.")) and len(stage) > len(inside) + 1:
        return stage[len(inside) + 1 :]
    own = stage.removeprefix("rl.")
    return own.removeprefix("train.") if own != stage else stage


def _blocks(report: Report) -> list[Block]:
    if not report.stages:
        return []
    shown = _shown(report.stages)
    ranks = sorted({one.who for row in report.balance for one in row.own})
    table = _table(report, shown, ranks if len(ranks) <= MOST_RANKS else [])
    table.narrow = _table(report, shown, []) if 1 < len(ranks) <= MOST_RANKS else None
    marked = {row.stage for row in report.balance if len(row.own) > 1 and not row.is_comparable}
    is_marked = any(row.stage in marked for row in shown if row.inside is None)
    note = "* with hidden collectives, or times of launches: names no slow rank" if is_marked else ""
    lines = [Line(line) for line in (_left(report, shown), _mean_step(report)) if line]
    return [table, *lines, *notes(note)]


def _shown(stages: Sequence[StageRow]) -> list[StageRow]:
    """Choose the stages with the largest shares, each below the stage around it."""
    least = {v.OTHER: LEAST_OTHER}
    rows = [row for row in stages if row.share >= least.get(row.stage, LEAST_SHARE) and row.inside != v.EVALUATE]
    largest = sorted(rows, key=lambda row: (-row.share, row.inside is not None))[:MOST_ROWS]
    around = {row.stage for row in largest if row.inside is None}
    return [row for row in rows if any(row is one for one in largest) and row.inside in (None, *around)]


def _table(report: Report, shown: Sequence[StageRow], ranks: list[Rank]) -> Table:
    balance = {row.stage: row for row in report.balance if len(row.own) > 1}
    has_ranks, has_comm = bool(balance), any(row.comm_share for row in shown)
    heads = ["median", *([rank_name(report, rank) for rank in ranks] or ["own time", "slowest"])]
    heads = heads if has_ranks else ["calls", "median", "p95"]
    columns = map(Column, ("share", *heads, *(["between ranks"] if has_comm else [])))
    table = Table([Column("step", "name"), Column("", "picture", LONGEST_BAR), *columns])
    largest = max(row.share for row in report.stages)
    for row in shown:
        callers = _callers(report, row)
        own = balance.get(row.stage) if row.inside is None else None
        times: list[Cell] = [
            "" if row.calls > report.steps.averaged * callers else seconds(row.median_s),
            *_own(own, ranks),
        ]
        comm = "hidden" if row.is_comm_hidden else percent(row.share * row.comm_share) if row.comm_share else ""
        table.add(
            _name(row) + (MARK if own is not None and not own.is_comparable else ""),
            share_bar(row, largest),
            percent(row.share),
            *(times if has_ranks else [count(row.calls), seconds(row.median_s), seconds(row.p95_s)]),
            *([comm] if has_comm else []),
            severity="note" if row.inside else "",
        )
    return table


def _callers(report: Report, row: StageRow) -> int:
    """Return how many processes have a stage: of several calls in a step of each the median says too little."""
    if not any(one.is_driver for one in report.roles):
        return len(report.ranks)
    return 1 if row.inside is None else sum(one.processes for one in report.roles if one.is_rank)


def _name(row: StageRow) -> str:
    if row.stage == v.OTHER:
        return UNNAMED
    return f"  {short(row.stage, row.inside)}" if row.inside else short(row.stage)


def _own(row: BalanceRow | None, ranks: list[Rank]) -> list[Cell]:
    if row is None:
        return [""] * (len(ranks) or 2)
    slow = {row.straggler, *row.tied}
    times_s = times_of({one.who: one.own_s for one in row.own}, ranks)[-(len(ranks) or 2) :]
    is_slow = [rank in slow for rank in ranks] or [False, row.straggler is not None]
    return [
        Line(cell(own_s, seconds), "warning" if is_one else "") for own_s, is_one in zip(times_s, is_slow, strict=True)
    ]


def _left(report: Report, shown: Sequence[StageRow]) -> str:
    """Count what has no row of its own."""
    left = [row for row in report.stages if row.inside is None and all(row is not one for one in shown)]
    stages = [row for row in left if row.stage != v.OTHER]
    waiting, unnamed = (sum(row.share for row in left if row.stage == name) for name in (f"{v.IDLE} data", v.OTHER))
    of_it = f" (waiting for data {percent(waiting)})" if waiting else ""
    share = percent(sum(row.share for row in stages))
    parts = [f"{plural(len(stages), 'more stage')} {share}{of_it}"] if stages else []
    return ", ".join([*parts, *([f"{UNNAMED} {percent(unnamed)}"] if unnamed else [])])


def _mean_step(report: Report) -> str:
    rows = report.efficiency.ranks
    if not rows:
        return ""
    called_s = {
        one.who: one.time_s for row in report.efficiency.bubbles if row.kind == "controller" for one in row.ranks
    }

    def did(row: RankTime) -> str:
        return _did(row, called_s.get(row.who, 0.0))

    mean = f"mean step {seconds(fmean(row.step_s for row in rows))} (p95 {seconds(report.steps.p95_s)})"
    if len(rows) == 1:
        return f"{mean}: {did(rows[0])}"
    if len(rows) == 2:
        return f"{mean}: {'; '.join(f'{rank_name(report, row)} {did(row)}' for row in rows)}"
    least, *_, longest = sorted(rows, key=lambda row: row.wait_s)
    ends = f"{rank_name(report, least)} {did(least)}; {rank_name(report, longest)} {did(longest)}"
    return f"{mean}, of {plural(len(rows), 'rank')} these wait least and longest: {ends}"


def _did(row: RankTime, driver_s: float) -> str:
    said = [f"works {seconds(row.active_s + row.inseparable_s)}"]
    said += [f"waits {'' if row.is_wait_exact else '>='}{seconds(row.wait_s)}"] if row.wait_s else []
    said += [f"sends {seconds(row.transfer_s)}"] if row.transfer_s else []
    said += [f"waits for the driver {seconds(driver_s)}"] if driver_s else []
    said += [f"CPU {percent(row.cpu_share)}"] if row.cpu_share is not None else []
    return ", ".join(said)


STEP: Final = Section(title="The step", blocks=_blocks)
