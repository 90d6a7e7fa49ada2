"""What each rank did: its time, its samples and tokens, and who holds the others up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from otel_rl import vocabulary as v
from otel_rl.report.data.report import Report
from otel_rl.report.data.time_use import WAITS_UNKNOWN, RankTime, SlowRankRow
from otel_rl.report.section import Block, Line, Section, Table, cell, foremost, more, notes, rank_name
from otel_rl.runs.format import count, percent, plural, seconds

MOST_SLOW: Final = 16
COLUMNS: Final[tuple[tuple[str, Callable[[RankTime], float | None], Callable[[float], str]], ...]] = (
    ("pp", lambda row: row.pipeline, "{:.0f}".format),
    ("active", lambda row: row.active_s, seconds),
    ("wait", lambda row: row.wait_s, seconds),
    ("transfer", lambda row: row.transfer_s, seconds),
    ("hidden", lambda row: row.inseparable_s, seconds),
    ("idle", lambda row: row.idle_s, seconds),
    ("other", lambda row: row.other_s, seconds),
    ("cpu", lambda row: row.cpu_share, percent),
    ("speed", lambda row: row.relative_score, "{:.2f}".format),
)
"""Heading, number, how it is written; a column without any number, or of zeros only, is left out."""
BOUNDS: Final = {"wait": ">=", "transfer": "<="}
LEGEND: Final = {
    "pp": "pp: pipeline stage, ranks are compared inside it",
    "wait": "wait: for a slower rank",
    "transfer": "transfer: sending (some waits cannot be told from it)",
    "hidden": "hidden: in stages that hide collectives",
    "cpu": "cpu: CPU time of the thread of the steps, over the step",
    "speed": "speed: 0.5 is half as fast as the fastest rank",
}
LEAST_SHARE: Final = 0.0005
WORK_NOTE: Final = "As generated for training; padding and trained tok. (those the loss uses) of all forwards."
ENVIRONMENT_NOTE: Final = "env.: tokens that tools or an environment wrote into the responses."


def _blocks(report: Report) -> list[Block]:
    times = report.efficiency
    blocks: list[Block] = [_table(report, times.ranks)] if len(times.ranks) > 1 else []
    blocks += [Line(line, "warning") for line in _slow(report)]
    if any(row.share >= LEAST_SHARE for row in times.bubbles):
        shares = [f"{row.kind} {'' if row.is_exact else '>='}{percent(row.share)}" for row in times.bubbles]
        blocks.append(Line(f"Bubbles of the step time: {', '.join(shares)}."))
    return blocks


def _table(report: Report, rows: list[RankTime]) -> Table:
    # of many ranks those that waited least: for them the others wait
    shown = foremost(rows, lambda row: row.wait_s)
    columns = [column for column in COLUMNS if any(column[1](row) for row in rows)]
    table = Table.of("mean step", *(head for head, _, _ in columns))
    for row in shown:
        bounds = {} if row.is_wait_exact else BOUNDS
        cells = [bounds.get(head, "") + cell(read(row), write) for head, read, write in columns]
        table.add(rank_name(report, row), *cells)
    if len(shown) < len(rows):
        table.legend.append(("", f"{plural(len(rows) - len(shown), 'rank')} that waited longer left out"))
    table.legend += [(head, LEGEND[head]) for head, _, _ in columns if head in LEGEND]
    if not all(row.is_wait_exact for row in rows):
        table.legend.append(("", f">=, <=: {WAITS_UNKNOWN}"))
    return table


def _slow(report: Report) -> list[str]:
    times = report.efficiency
    lines = [_over_all(report, row) for row in times.slow_ranks[:MOST_SLOW]]
    lines += [
        f"{rank_name(report, row)} in {row.stage} alone: {seconds(row.cost_s)} per step, "
        f"{percent(row.share)} of the {row.of_step}: slow in {count(row.slow_steps)} of {plural(row.steps, 'step')}"
        for row in times.stragglers[:MOST_SLOW]
    ]
    if len(times.stragglers) > MOST_SLOW:
        lines.append(f"and {count(len(times.stragglers) - MOST_SLOW)} more are slow, which --json has")
    lines += [
        f"Collectives {'under no stage' if row.stage == v.COMM else f'inside {row.stage}'} take "
        f"{seconds(row.transfer_s)} per step, {percent(row.share)}, on every rank{times.of_stage(row.pipeline)} alike: "
        "slow communication"
        for row in times.slow_communication
    ]
    return [f"{line[0].upper()}{line[1:]}." for line in lines]


def _over_all(report: Report, row: SlowRankRow) -> str:
    where = "everything" if row.is_everywhere else f"its {plural(len(row.stages), 'slow stage')}"
    comm = f", of it {seconds(row.comm_s)} inside collectives" if row.comm_s else ""
    core = ""
    if row.core_share is not None and row.others_core_share is not None:
        core = f"; at work it gets {percent(row.core_share)} of a core, its peers {percent(row.others_core_share)}"
    who = rank_name(report, row)
    return f"{who} costs {seconds(row.cost_s)} per step in {where}, {percent(row.share)} of its mean step{comm}{core}"


def _work_blocks(report: Report) -> list[Block]:
    if not any(row.samples or row.train_tokens or row.response_tokens for row in report.work):
        return []
    has_environment = any(row.environment_tokens for row in report.work)
    environment = ["env."] if has_environment else []
    name = "with spans" if report.unseen_steps else "in all steps"
    table = Table.of(name, "samples", "prompt tok.", "response tok.", *environment, "padding", "trained tok.")
    shown = foremost(report.work, lambda row: -(row.train_tokens or 0))
    for row in shown:
        numbers = [row.samples, row.prompt_tokens, row.response_tokens]
        numbers += [row.environment_tokens] if has_environment else []
        numbers += [row.padding_tokens, row.train_tokens]
        table.add(rank_name(report, row), *(cell(number, count) for number in numbers))
    note = f"{WORK_NOTE} {ENVIRONMENT_NOTE}" if has_environment else WORK_NOTE
    return [table, *more(len(report.work) - len(shown)), *notes(note)]


RANKS: Final = Section(title="Ranks", blocks=_blocks)
WORK: Final = Section(
    title="Samples and tokens",
    blocks=_work_blocks,
)
